"""A model on several ranks, as processes of this machine connected by MLX's ring.

Waiting ranks keep their cores busy, so there are few requests, and each group is launched once.
"""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx2
import mlx.core as mx
import pytest

import akunu_py
from akunu_py.__main__ import main
from akunu_py.errors import AkunuError
from akunu_py.options import BUNDLED_MODEL
from akunu_py.ranks.group import Ranks, connect, has_closed, ring_sockets
from akunu_py.ranks.split_model import Follower, Operation, sampled_weights
from tests import ranked
from tests.processes import start
from tests.server.live import wait_until
from tests.tiny_model import SPECIAL_TOKENS, VOCABULARY, write_tiny_model

pytestmark = pytest.mark.skipif(
    not mx.distributed.is_available("ring"), reason="MLX has no ring backend here"
)

PATIENCE_S: Final = 300
END: Final = 256 + SPECIAL_TOKENS.index("<|im_end|>")
"""The tiny models' end token; one token for each byte comes before the special ones."""
LAYERS: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
HYBRID: Final = LAYERS | {
    "model_type": "qwen3_5", "full_attention_interval": 2, "linear_num_value_heads": 4,
    "linear_num_key_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "num_experts": 0,
}  # fmt: skip

THREE: Final = {
    "hidden_size": 96, "intermediate_size": 96, "num_attention_heads": 3, "num_key_value_heads": 3,
}  # fmt: skip
"""What three ranks can share."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Tiny models, by their architecture; `layers` has as many of both kinds on two ranks."""
    place = tmp_path_factory.mktemp("ranked")
    made = {
        "llama": write_tiny_model(place / "llama", **LAYERS),
        "qwen3_5": write_tiny_model(place / "qwen3_5", model_type="qwen3_5", text_config=HYBRID),
        "layers": write_tiny_model(
            place / "layers", model_type="qwen3_5", text_config=HYBRID | {"num_hidden_layers": 4}
        ),
        "three": write_tiny_model(place / "three", **LAYERS | THREE),
    }
    return {name: str(folder) for name, folder in made.items()}


@contextmanager
def launched(
    folder: Path, *commands: list[str], size: int = 2
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Ranks as `mlx.launch` starts them; all run the first command, or each its own."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(size)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        addresses = [[f"127.0.0.1:{one.getsockname()[1]}"] for one in sockets]
    hosts = folder / f"hosts-{addresses[0][0].rpartition(':')[2]}.json"
    hosts.write_text(json.dumps(addresses))
    with ExitStack() as stack:
        ranks = []
        for rank in range(size):
            env = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
            process = start(*commands[rank % len(commands)], env=env)
            stack.enter_context(process)
            stack.callback(process.kill)
            ranks.append(process)
        yield ranks


@contextmanager
def answering(folder: Path, model: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two ranks in the middle of an answer that does not end before 4,000 tokens."""
    words = ["-m", "akunu_py", "generate", "--model", model, "--prompt", "one two"]
    words += ["--logit-bias", f"{END}=-100", "--drafter", "none"]
    with launched(folder, [*words, "--max-tokens", "4000"]) as ranks:
        assert ranks[0].stdout is not None
        ranks[0].stdout.read(1)
        yield ranks


@contextmanager
def serving(folder: Path, model: str) -> Iterator[tuple[list["subprocess.Popen[str]"], str]]:
    """Two ranks of a server that has loaded its model, and its address."""
    words = ["-m", "akunu_py", "serve", "--model", model, "--port", "0", "--log-level", "WARNING"]
    with launched(folder, words) as ranks:
        assert ranks[0].stdout is not None
        while not (line := ranks[0].stdout.readline()).startswith("Serving"):
            assert line, "it has ended"
        url = line.split()[-1]
        wait_until(lambda: httpx2.get(f"{url}/health", timeout=PATIENCE_S).status_code == 200)
        yield ranks, url


def outcome(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    own = [line for line in err.splitlines() if not line.startswith("[ring]")]  # MLX's lines
    return process.returncode, out, "\n".join(own)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_answer_as_one_process_does(
    folders: dict[str, str], tmp_path: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [folders["three"]]
    if size == 2:
        asked = [folders["qwen3_5"], f"{folders['layers']}|", BUNDLED_MODEL]
    alone = {
        name: ranked.answers(name.removesuffix("|"), whole=ranked.has_many(size, name))
        for name in asked
    }
    with launched(tmp_path, ["-m", "tests.ranked", str(size), *asked], size=size) as ranks:
        ended = [outcome(process) for process in ranks]
    assert [(code, errors) for code, _, errors in ended] == [(0, "")] * size
    api, *command_line = ended[0][1].splitlines()
    found = json.loads(api)
    for name, expected in alone.items():
        way = "pipeline" if name.endswith("|") else "tensor"
        assert found[name].pop("ranks") == f"{size} ranks (ring), {way} parallel"
        assert found[name].pop("bytes") < 0.8 * expected.pop("bytes")
        assert found[name] == expected, name
    for line in command_line:  # with two ranks
        assert main(["generate", "--model", asked[0], *ranked.GENERATE]) == 0
        assert json.loads(line)["token_ids"] == json.loads(capsys.readouterr().out)["token_ids"]


def test_a_server_loses_a_rank_in_the_middle_of_an_answer(
    folders: dict[str, str], tmp_path: Path
) -> None:
    engine = akunu_py.load(folders["llama"])
    expected = engine.generate("abc abc", akunu_py.Options(4)).text
    endless = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
    with serving(tmp_path, folders["llama"]) as (ranks, url):
        with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
            with client.stream("POST", "/completion", json=endless) as cancelled:
                next(cancelled.iter_lines())
            body = {"prompt": "abc abc", "n_predict": 4, "temperature": 0}
            assert client.post("/completion", json=body).json()["content"] == expected
            with client.stream("POST", "/completion", json=endless) as answer:
                lines = answer.iter_lines()
                next(lines)
                ranks[1].kill()
                last = [line for line in lines if line][-1]
        code, _, errors = outcome(ranks[0])
    assert "Rank 0 has lost another rank" in last
    assert code == 3
    assert errors.splitlines()[-1] == (
        "akunu-py: Rank 0 has lost another rank: connection to a peer was lost."
    )


def test_the_others_end_if_the_first_rank_is_killed(
    folders: dict[str, str], tmp_path: Path
) -> None:
    with answering(tmp_path, folders["llama"]) as ranks:
        ranks[0].kill()
        code, _, errors = outcome(ranks[1])
    assert code == 3
    assert "has lost rank 0" in errors
    assert "a bug" not in errors


def test_an_interrupted_answer_ends_all_quietly(folders: dict[str, str], tmp_path: Path) -> None:
    with answering(tmp_path, folders["llama"]) as ranks:
        ranks[0].send_signal(signal.SIGINT)
        ended = [outcome(process) for process in ranks]
    assert [(code, errors) for code, _, errors in ended] == [(130, "")] * 2


def test_a_rank_that_cannot_load_lets_nobody_wait(folders: dict[str, str], tmp_path: Path) -> None:
    words = ["-m", "akunu_py", "generate", "--prompt", "a", "--model"]
    with launched(tmp_path, [*words, folders["llama"]], [*words, str(tmp_path / "no")]) as ranks:
        ended = [outcome(process) for process in ranks]
    assert [code for code, *_ in ended] == [3, 2]
    assert "Rank 0 has lost another rank" in ended[0][2]
    assert "There is no model folder" in ended[1][2]


def test_the_sockets_of_a_ring_are_found_and_their_end_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        hosts = [["{}:{}".format(*one.getsockname())] for one in (server, free)]
        with socket.create_connection(server.getsockname()) as other:
            accepted, _ = server.accept()
            with accepted:
                sockets = ring_sockets(0, hosts)
                assert sockets == [accepted.fileno()]
                assert sockets != ring_sockets(1, hosts) == [other.fileno()]
                assert not has_closed(sockets)
                other.send(b"unread")
                other.close()
                assert has_closed(sockets)


@pytest.mark.parametrize("words", [["bench", "speedup"], ["doctor", "--report", "machine"]])
def test_what_runs_mlx_lm_alone_is_refused_by_all_ranks_before_they_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("akunu_py.__main__.find_backend", pytest.fail)
    for rank in ("0", "1"):
        monkeypatch.setenv("MLX_RANK", rank)
        with monkeypatch.context() as inner:
            inner.setattr("akunu_py.__main__.signal", lambda *_: None)  # of this process
            assert main(words) == 2
        assert "compare with mlx-lm in one process: omit `mlx.launch`." in capsys.readouterr().err


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of hosts that the first rank gets."""
    monkeypatch.setenv("MLX_RANK", "0")
    monkeypatch.setenv("MLX_HOSTFILE", str(tmp_path / "hosts.json"))
    return tmp_path / "hosts.json"


@pytest.mark.parametrize(
    "content",
    [b'{"a": 1}', b"no JSON", b"\xff", b'["10.0.0.1:5000", "10.0.0.2:5000"]', b"[1, 2]",
     b'[["10.0.0.1"], ["10.0.0.2:5000"]]', b'[["10.0.0.1:99999"], ["10.0.0.2:5000"]]'],
)  # fmt: skip
def test_a_wrong_file_of_hosts_is_refused_before_mlx_reads_it(hosts: Path, content: bytes) -> None:
    hosts.write_bytes(content)
    with pytest.raises(AkunuError, match="must hold a JSON list like"):
        connect()


@pytest.mark.parametrize("content", ["", "[]", '[["10.0.0.1:5000"]]'])
def test_one_host_is_no_group(hosts: Path, content: str) -> None:
    hosts.write_text(content)
    assert connect() == (None, "ring")


def test_other_weights_of_the_same_configuration_are_told_apart(tmp_path: Path) -> None:
    folders = [write_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    same = write_tiny_model(tmp_path / "same", seed=0)
    assert sampled_weights(folders[0]) == sampled_weights(same) != sampled_weights(folders[1])


def test_a_rank_without_others_says_which_variable_makes_it_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLX_RANK", raising=False)
    monkeypatch.setenv("PMI_RANK", "0")

    def fail(**_: Any) -> None:
        raise RuntimeError("Cannot initialize MPI.")

    monkeypatch.setattr(mx.distributed, "init", fail)
    with pytest.raises(AkunuError, match=r"Cannot initialize MPI\. If .* unset PMI_RANK\."):
        connect()


def test_a_follower_that_waits_in_a_forward_notices_that_rank_0_has_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group: Any = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    ended: list[int] = []
    gone = Event()

    def leave(code: int) -> None:
        ended.append(code)
        gone.set()

    monkeypatch.setattr(os, "_exit", leave)

    class Stuck:
        def make_cache(self, capacity: int, **_: Any) -> object:
            return object()

        def forward(self, *_: Any) -> None:
            assert gone.wait(20)
            raise ValueError

    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        ranks = Ranks(group, "ring", PATIENCE_S, [ours.fileno()])
        follower = Follower(cast(Any, Stuck()), ranks)
        words = [Operation.MAKE, 1, 8, -1, Operation.FORWARD, 1, 1, 1, 5]
        assert follower.obey(iter(words)) is None
    assert ended == [3]
    assert "Rank 1 has lost rank 0: connection to a peer was lost." in capsys.readouterr().err


def test_a_signal_to_the_first_rank_ends_all(folders: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, folders["llama"]) as (ranks, _):
        ranks[0].send_signal(signal.SIGTERM)
        ended = [outcome(process) for process in ranks]
    assert [(code, errors) for code, _, errors in ended] == [(0, "")] * 2


SILENT: Final = "import signal, mlx.core as mx; mx.distributed.init(True, 'ring'); signal.pause()"


def test_a_rank_that_does_not_answer_ends_the_others(
    folders: dict[str, str], tmp_path: Path
) -> None:
    words = ["-m", "akunu_py", "generate", "--model", folders["llama"], "--prompt", "a"]
    with launched(tmp_path, [*words, "--rank-timeout", "0.05"], ["-c", SILENT]) as ranks:
        code, _, errors = outcome(ranks[0])
    assert code == 3
    assert re.fullmatch(r"akunu-py: Rank 0 .*(did not answer|not reach the others) in .*", errors)


class FakeRanks:
    rank, size = 0, 3

    def check_same(self, facts: str, otherwise: str = "") -> None:
        """Nobody differs."""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "This model cannot be split among 3 ranks; try another number"),
        ({"pipeline": True}, "mlx-lm's llama cannot be pipelined: omit --pipeline"),
        ({"adapter_path": "."}, "Several ranks cannot do --adapter-path; fuse the adapter"),
        ({"mtp": "."}, "Several ranks cannot do --mtp"),
        ({"prompt_cache_dir": Path()}, "Several ranks cannot do --prompt-cache-dir"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], sentence: str
) -> None:
    monkeypatch.setattr("akunu_py.loading.find_ranks", lambda _: FakeRanks())
    with pytest.raises(AkunuError, match=sentence):
        akunu_py.load(akunu_py.ModelOptions(**options))


def test_a_pipeline_needs_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--prompt", "a", "--pipeline"]) == 2
    assert "start them with `mlx.launch -n 2`" in capsys.readouterr().err
