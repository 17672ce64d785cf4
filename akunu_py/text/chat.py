"""ChatTranscript: a conversation as token ids, which only grow at the end.

The ids of an answer are kept as they were generated, because encoding its text again might split it
differently. So the prompt of the next turn begins with the ids that the cache holds already.
"""

from akunu_py.text.tokenizer import Message, Tokenizer


class ChatTranscript:
    """The messages of a conversation, and the ids that the model has seen of them."""

    def __init__(self, tokenizer: Tokenizer, system: str | None = None) -> None:
        self._tokenizer = tokenizer
        self.messages: list[Message] = []
        if system:
            self.messages.append({"role": "system", "content": system})
        self._seen_text = ""
        self._seen_tokens: list[int] = []

    def copy(self) -> "ChatTranscript":
        """A copy of the conversation, which can be continued differently."""
        twin = ChatTranscript(self._tokenizer)
        twin.messages = list(self.messages)
        twin._seen_text, twin._seen_tokens = self._seen_text, self._seen_tokens
        return twin

    def prompt_for(self, question: str) -> list[int]:
        """The ids that ask for an answer to `question`; the transcript does not change.

        Raises:
            InvalidRequestError: if the model's template refuses the conversation.
        """
        _, text = self._ask(question)
        if self._seen_text and text.startswith(self._seen_text):
            rest = text[len(self._seen_text) :]
            return [*self._seen_tokens, *self._tokenizer.encode(rest, special_tokens=False)]
        return self._tokenizer.encode(text)

    def add_turn(self, question: str, prompt: list[int], answer: str, tokens: list[int]) -> None:
        """Appends a question and its answer, finished or not: `prompt` has the ids that
        `prompt_for` returned for the question, `tokens` the generated ids of the answer."""
        asked, text = self._ask(question)
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        self._seen_text = text + self._tokenizer.decode(tokens)
        self._seen_tokens = [*prompt, *tokens]

    def replace(self, messages: list[Message]) -> None:
        """Continues other messages, for example those of a loaded conversation."""
        self.messages = list(messages)
        self._seen_text, self._seen_tokens = "", []

    def _ask(self, question: str) -> tuple[list[Message], str]:
        """The messages with a question after them, and their text."""
        asked = [*self.messages, {"role": "user", "content": question}]
        return asked, self._tokenizer.render_chat(asked, open_answer=True)
