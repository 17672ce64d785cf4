"""How Ollama's clients call the model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from akunu_py.engine import Engine


def served_name(engine: "Engine") -> str:
    """The model's name with a tag, as all names that Ollama tells have one."""
    return f"{engine.model.name}:latest"
