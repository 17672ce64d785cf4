"""The seed benchmark: sampled bigram and trigram drafts on a character-level model."""
