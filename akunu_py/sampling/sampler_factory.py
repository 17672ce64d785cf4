"""SamplerFactory: from a request's options to what chooses its tokens, for one model."""

from collections.abc import Sequence

from akunu_py.errors import InvalidRequestError
from akunu_py.model import TargetModel
from akunu_py.options import Options
from akunu_py.sampling.constraint import ConstraintMaker
from akunu_py.sampling.infill import InfillFilter, texts_of
from akunu_py.sampling.sampler import Sampler


class SamplerFactory:
    """Makes samplers that fit a model's vocabulary.

    Args:
        model: whose tokens are chosen.
    """

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self._constraints = ConstraintMaker(model)

    def make(
        self, options: Options, prompt: Sequence[int], end_tokens: frozenset[int] = frozenset()
    ) -> Sampler:
        """What chooses the tokens of the answer to `prompt`.

        Args:
            options: how to choose them.
            prompt: the ids that the answer goes on from.
            end_tokens: ids that end this answer beside the model's usual ones.

        Raises:
            InvalidRequestError: if a bias is for a token that the model does not have, or the
                grammar cannot be followed.
        """
        vocabulary = self._model.vocabulary_size
        for token, _ in options.sampling.logit_bias:
            if token >= vocabulary:
                raise InvalidRequestError(
                    f"There is no token {token} to bias; the vocabulary has {vocabulary}."
                )
        constraint = None
        if options.grammar is not None:
            constraint = self._constraints.make(options.grammar, len(prompt))
        infill = self._infill(end_tokens) if options.sampling.infill else None
        return Sampler(options.sampling, prompt, constraint=constraint, infill=infill)

    def _infill(self, end_tokens: frozenset[int]) -> InfillFilter:
        tokenizer = self._model.tokenizer
        ends = [*sorted(tokenizer.end_tokens), *sorted(end_tokens - tokenizer.end_tokens)]
        return InfillFilter(ends, texts_of(tokenizer))
