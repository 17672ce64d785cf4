"""Why an answer ended, in the two words that OpenAI's and Ollama's contracts have for it."""

from typing import Final

from akunu_py.stats import Finish

FINISH_REASONS: Final = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.CONTEXT: "length",
    Finish.CANCELLED: "length",
}
