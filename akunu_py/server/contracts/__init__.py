"""The contracts that the server speaks, one family of clients a folder."""

from typing import Final

from akunu_py.server.contract import Contract
from akunu_py.server.contracts.llama import LLAMA
from akunu_py.server.contracts.ollama import OLLAMA
from akunu_py.server.contracts.openai import OPENAI
from akunu_py.server.contracts.page import PAGE

CONTRACTS: Final[tuple[Contract, ...]] = (LLAMA, OPENAI, OLLAMA, PAGE)
"""The first one also answers for paths that are nobody's."""
