"""`serve` as a process: it prints its address, and ends on a signal."""

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from mlx_lm.utils import _parse_size

from akunu_py.__main__ import main
from akunu_py.cli.parser import parse
from akunu_py.cli.serve import _listen, _load, tell_ready
from akunu_py.cli.settings import ServeSettings
from akunu_py.model.library import LocalModel
from akunu_py.scheduler import Scheduler
from akunu_py.server.settings import Defaults, ServerSettings
from tests import processes
from tests.server.live import wait_until
from tests.tiny_model import write_tiny_model

PATIENCE_S = 60


def start(*words: str) -> "subprocess.Popen[str]":
    return processes.start(*processes.PROGRAM, "serve", *words)


@pytest.fixture
def process(tiny_model_dir: Path) -> Iterator["subprocess.Popen[str]"]:
    process = start("--model", str(tiny_model_dir), "--port", "0", "--no-speculate")
    with process:
        yield process
        process.kill()


def url_of(process: "subprocess.Popen[str]") -> str:
    """The address of a server, once its model is loaded."""
    assert process.stdout is not None
    loading, serving = process.stdout.readline(), process.stdout.readline()
    assert loading.startswith("Loading ")
    assert serving == loading.replace("Loading", "Serving")
    assert process.stdout.readline() == "Up to 4 requests are answered at a time.\n"
    return serving.split()[-1]


def test_collections_of_garbage_leave_the_libraries_out(tiny_model_dir: Path) -> None:
    try:
        model = LocalModel.named(str(tiny_model_dir))
        settings = parse(["serve", "--model", str(tiny_model_dir)]).settings
        engine = _load(settings, (model,), model, 0)
        assert not any(one is sys.modules["transformers"] for one in gc.get_objects())
        assert any(one is engine for one in gc.get_objects()), "it may have to go"
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("parallel", "why", "told"),
    [
        (4, None, "Up to 4 requests are answered at a time.\n"),
        (4, "They take turns.", "Up to 4 requests are answered at a time. They take turns.\n"),
        (2, None, "Up to 2 requests are answered at a time, not 4: more caches would not"),
        (1, None, "Requests are answered one after another, not 4: more caches would not"),
    ],
)
def test_it_tells_how_many_requests_are_answered_together(
    capsys: pytest.CaptureFixture[str], parallel: int, why: str | None, told: str
) -> None:
    service: Any = SimpleNamespace(
        engine=SimpleNamespace(notices=[]),
        worker=SimpleNamespace(scheduler=Scheduler(parallel)),
        why_in_turns=why,
    )
    tell_ready([service], "a model", wanted=4)
    assert capsys.readouterr().out.startswith(f"Serving a model\n{told}")


def wait_for_requests(url: str, count: int) -> None:
    """Waits until the server has accepted this many requests, by its own counts."""
    counts = re.compile(r"^llamacpp:requests_(?:total|processing|deferred) (\d+)$", re.MULTILINE)
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        wait_until(lambda: sum(map(int, counts.findall(client.get("/metrics").text))) >= count)


def test_a_signal_ends_it_with_requests_in_flight(process: "subprocess.Popen[str]") -> None:
    url = url_of(process)

    def ask(streams: bool) -> str:
        body = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": streams}
        return httpx2.post(f"{url}/completion", json=body, timeout=PATIENCE_S).text

    streamed = [True] * 6 + [False] * 2
    with ThreadPoolExecutor(len(streamed)) as pool:
        answers = pool.map(ask, streamed)
        wait_for_requests(url, len(streamed))
        process.send_signal(signal.SIGINT)
        texts = list(answers)
    assert all('"stop":true' in text or "shutting down" in text for text in texts)
    assert any("shutting down" in text for text in texts)
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_a_signal_while_the_model_loads_ends_it_quietly(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Loading ")
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, complaints) == (0, "")


def test_it_listens_on_several_addresses() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6")
    with ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in _listen("127.0.0.1,::1", 0)]
        names = [listener.getsockname()[:2] for listener in listeners]
        assert names == [("127.0.0.1", names[0][1]), ("::1", names[0][1])]
        for name in names:
            socket.create_connection(name).close()


def test_a_server_that_starts_again_goes_on_from_its_folder(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = ("--model", str(tiny_model_dir), "--port", "0", "--prompt-cache-dir", str(tmp_path))
    cached = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with start(*words) as process:
            body = {"prompt": "Say it again. " * 10, "max_tokens": 1}
            answer = httpx2.post(f"{url_of(process)}/v1/completions", json=body, timeout=PATIENCE_S)
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
    assert cached == [0, 139]


def test_few_descriptors_and_no_temporary_folder_are_enough(tiny_model_dir: Path) -> None:
    command = [sys.executable, "-m", "akunu_py", "generate", "--prompt", "a", "--max-tokens=2"]
    command += ["--model", str(tiny_model_dir)]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *command],
        env=os.environ | {"TMPDIR": "/nonexistent"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert (done.returncode, "defect" in done.stderr) == (0, False)


@pytest.fixture
def serve_here(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """Runs `serve` in this process until it ends by itself: the exit status and both outputs."""
    caplog.set_level(logging.WARNING, "akunu_py")  # the command sets it

    def serve(*words: str) -> tuple[int, str, str]:
        return main(["serve", *words]), *capsys.readouterr()

    return serve


def test_a_port_in_use_is_one_sentence(
    tiny_model_dir: Path, serve_here: Callable[..., tuple[int, str, str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = serve_here("--model", str(tiny_model_dir), "--port", str(port))
    sentence = f"Port {port} on 127.0.0.1 is in use; choose another one with --port."
    assert ended == (2, "", f"akunu-py: {sentence}\n")


def test_an_alias_of_a_model_that_is_not_here_is_one_sentence(
    tiny_model_dir: Path, serve_here: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = serve_here("--model", str(tiny_model_dir), "--alias", "a=tiny,b=nothing")
    assert (code, out) == (2, "")
    assert err.startswith("akunu-py: model 'nothing' not found: this server has a, ember")


@pytest.mark.parametrize("alias", ["other=tiny", "default=tiny", "=tiny"])
def test_an_alias_that_is_taken_is_one_sentence(
    tmp_path: Path, serve_here: Callable[..., tuple[int, str, str]], alias: str
) -> None:
    for name in ("tiny", "other"):
        write_tiny_model(tmp_path / name)
    words = ("--models-dir", str(tmp_path), "--model", "tiny", "--alias", "a", "--alias", alias)
    code, out, err = serve_here(*words)
    assert (code, out) == (2, "")
    assert err == f"akunu-py: --alias {alias}: {alias.partition('=')[0] or 'no name'} is taken.\n"


def test_a_folder_called_like_the_bundled_model_does_not_hide_it(
    tmp_path: Path, serve_here: Callable[..., tuple[int, str, str]]
) -> None:
    write_tiny_model(tmp_path / "ember")
    words = ("--models-dir", str(tmp_path), "--model", "ember", "--model", str(tmp_path / "ember"))
    assert serve_here(*words)[2] == "akunu-py: Two models are called ember; rename one folder.\n"


def test_two_models_of_one_name_and_a_folder_that_is_not_there_are_one_sentence(
    tmp_path: Path, serve_here: Callable[..., tuple[int, str, str]]
) -> None:
    one, other = (write_tiny_model(tmp_path / place / "tiny") for place in "ab")
    _, _, err = serve_here("--model", str(one), "--model", str(other))
    assert err == "akunu-py: Two models are called tiny; rename one folder.\n"
    _, _, err = serve_here("--models-dir", str(tmp_path / "c"))
    assert err == f"akunu-py: There is no folder {tmp_path / 'c'}; check --models-dir.\n"


def test_options_of_one_model_need_one(serve_here: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = serve_here("--model", "ember", "--model", "other", "--draft-model", "ember")
    assert (code, err) == (2, "akunu-py: --draft-model applies to one model; give one --model.\n")


@pytest.mark.parametrize(("words", "warns"), [((), True), (("--api-key", "k"), False)])
def test_it_warns_if_others_can_reach_it_and_ends_if_the_model_does_not_load(
    tmp_path: Path,
    serve_here: Callable[..., tuple[int, str, str]],
    caplog: pytest.LogCaptureFixture,
    words: tuple[str, ...],
    *,
    warns: bool,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, out, err = serve_here(
        "--model", str(tmp_path), "--host", "0.0.0.0", "--port", "0", *words
    )
    assert out.startswith("Loading ")
    assert "Serving" not in out
    assert ("see --api-key" in caplog.text) == warns
    assert code == 2
    assert err.splitlines()[-1].startswith("akunu-py: ")
    assert "Traceback" not in err


def settings_of(words: str) -> ServeSettings:
    settings = parse(["serve", *words.split()]).settings
    assert isinstance(settings, ServeSettings)
    return settings


def test_defaults_stay_on_this_machine() -> None:
    assert settings_of("").server == ServerSettings()
    assert settings_of("").server.host == "127.0.0.1"


def test_words_become_settings() -> None:
    settings = settings_of(
        "--host 0.0.0.0 --port 9 --api-key k --cors http://a --cors http://b --allow-host c "
        "--queue 3 --parallel 2 --alias mine,yours --log-prompts --log-level debug "
        "--prefill-step-size 64 --max-tokens 5 --temp 0.5 --top-p 0.9 --top-k 7 --min-p 0.1 "
        "--seed 3 --num-draft-tokens 2 --xtc-probability 0.5 --xtc-threshold 0.2 --exact"
    )
    assert settings.server == ServerSettings(
        host="0.0.0.0",
        port=9,
        api_key="k",
        origins=("http://a", "http://b"),
        hosts=("c",),
        queue=3,
        parallel=2,
        log_prompts=True,
        aliases=("mine", "yours"),
        defaults=Defaults(5, 0.5, 0.9, 7, 0.1, 0.5, 0.2, 3, num_draft_tokens=2, exact=True),
    )
    assert (settings.log_level, settings.model.prefill_step_size) == ("DEBUG", 64)
    assert "api_key=" not in repr(settings)


@pytest.mark.parametrize(
    ("word", "nbytes"),
    [("0", 0), ("123", 123), ("1.5GB", 1_500_000_000), ("2g", 2 * 10**9), ("20 MB", 20_000_000)],
)
def test_sizes_are_read_as_mlx_lms_server_reads_them(word: str, nbytes: int) -> None:
    settings = parse(["serve", "--prompt-cache-bytes", word]).settings
    assert settings.model.prompt_cache_bytes == nbytes == _parse_size(word)
