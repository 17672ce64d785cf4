"""Several models in one server: names, room, unloading, and what clients are told meanwhile."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event as Flag
from typing import Any

import httpx2
import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.errors import AkunuError, InvalidRequestError, ModelLoadError
from akunu_py.model import loading
from akunu_py.model.library import Download, LocalModel
from akunu_py.server import app
from akunu_py.server import models as endpoints
from akunu_py.server import pool as pools
from akunu_py.server.pool import Pool
from akunu_py.server.settings import Defaults, ServerSettings
from tests.server.live import PATIENCE_S, LiveServer, parse_events, serve_pool, wait_until
from tests.tiny_model import write_tiny_model

NAMES = ("large-coder", "small-coder", "talker")
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[LocalModel]:
    """Three models that answer differently, of the same size."""
    place = tmp_path_factory.mktemp("models")
    found = []
    for seed, name in enumerate(NAMES):
        folder = write_tiny_model(place / name, seed=seed)
        found.append(LocalModel(f"somebody/{name}" if seed else name, folder))
    return found


def load(model: LocalModel, _: int = 0) -> Engine:
    return akunu_py.load(str(model.folder))


@pytest.fixture(scope="module")
def taken(models: list[LocalModel]) -> float:
    """The bytes of one of them and of a usual cache."""
    model = load(models[0]).model
    return model.parameter_bytes + model.cache_bytes(2048)


Serve = Callable[..., AbstractContextManager[LiveServer]]


@pytest.fixture
def serving(models: list[LocalModel], taken: float) -> Serve:
    """Serves the first model, and offers the others; there is room for `room` of them."""

    def serve(
        *, room: float = 3.5, loader: Any = load, **settings: Any
    ) -> AbstractContextManager[LiveServer]:
        given = ServerSettings(**settings)
        pool = Pool(
            loader, given, models[:1], others=lambda: models[1:], memory=lambda: room * taken
        )
        return serve_pool(pool)

    return serve


@pytest.fixture
def all_models(serving: Serve) -> Iterator[LiveServer]:
    with serving(aliases=("quick=small-coder",)) as server:
        yield server


def complete(server: LiveServer, model: str | None, **fields: Any) -> Any:
    body = {"prompt": "def f(", **GREEDY, **({} if model is None else {"model": model})}
    return server.post("/v1/completions", body | fields)


def delete(server: LiveServer, body: dict[str, str]) -> httpx2.Response:
    return server.client.request("DELETE", "/api/delete", json=body)


def loaded(server: LiveServer) -> list[str]:
    return [model["name"] for model in server.get("/api/ps").json()["models"]]


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        (None, "large-coder"),
        ("", "large-coder"),
        ("default", "large-coder"),
        ("large-coder", "large-coder"),
        ("somebody/talker", "somebody/talker"),
        ("talker", "somebody/talker"),
        ("Talker:latest", "somebody/talker"),
        ("quick", "quick"),
        ("QUICK:latest", "quick"),
        ("small-coder", "quick"),
    ],
)
def test_a_request_names_its_model(all_models: LiveServer, asked: str | None, answers: str) -> None:
    assert complete(all_models, asked).json()["model"] == answers


def test_a_request_may_name_a_folder_as_the_command_does(
    all_models: LiveServer, models: list[LocalModel]
) -> None:
    assert complete(all_models, f"{models[0].folder}/").json()["model"] == "large-coder"
    assert complete(all_models, str(models[2].folder)).status_code == 404


def test_models_answer_as_they_do_alone(all_models: LiveServer, models: list[LocalModel]) -> None:
    for model in models:
        engine = load(model)
        own = engine.generate("def f(", akunu_py.Options(max_tokens=6, drafter="none")).text
        assert complete(all_models, model.name).json()["choices"][0]["text"] == own


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/v1/completions", lambda it: (it["error"]["message"], it["error"]["code"])),
        ("/completion", lambda it: (it["error"]["message"], it["error"]["code"])),
        ("/v1/messages", lambda it: (it["error"]["message"], it["error"]["type"])),
        ("/api/chat", lambda it: (it["error"], None)),
    ],
)
def test_an_unknown_model_is_not_found_in_each_contract(
    all_models: LiveServer, path: str, read: Callable[[Any], tuple[str, Any]]
) -> None:
    answer = all_models.post(path, {"model": "smal-coder", "prompt": "a", "messages": []})
    message, code = read(answer.json())
    assert answer.status_code == 404
    assert message.startswith("model 'smal-coder' not found: this server has large-coder, quick")
    assert "did you mean quick" in message or "did you mean large-coder" in message
    assert code in ("model_not_found", 404, "not_found_error", None)
    assert loaded(all_models) == ["large-coder:latest"]


def test_a_name_of_several_models_is_refused(models: list[LocalModel]) -> None:
    twin = LocalModel("else/talker", models[2].folder)
    pool = Pool(load, ServerSettings(), models, others=lambda: [twin])
    with pytest.raises(AkunuError, match="not found"):
        pool.find("else/talker")
    assert pool.find_on_disk("else/talker") is twin
    with pytest.raises(AkunuError, match="may be somebody/talker or else/talker"):
        pool.find("talker")


def test_a_name_keeps_its_model(models: list[LocalModel]) -> None:
    """Also where two have it, and where another that is called so comes later."""
    twins = [LocalModel("twin", models[0].folder), LocalModel("twin", models[1].folder)]
    here = [models[2]]
    pool = Pool(load, ServerSettings(aliases=("quick=talker",)), twins, others=lambda: here)
    for _ in range(2):
        assert pool.find("twin") == twins[0]
        assert pool.find_on_disk("quick") == models[2]
        here.insert(0, LocalModel("else/talker", models[1].folder))
        pool.models()


def test_a_folder_that_comes_back_is_the_same_model(models: list[LocalModel]) -> None:
    here = [LocalModel("b", models[1].folder)]
    pool = Pool(load, ServerSettings(), models[:1], others=lambda: here)
    with serve_pool(pool) as server:
        complete(server, "b", keep_alive=-1)
        here.clear()
        server.get("/v1/models")
        here.append(LocalModel("b", models[1].folder))
        complete(server, "b")
        assert [seat.model.name for seat in pool.seats] == ["large-coder", "b"]


def test_a_model_with_broken_files_hides_no_other(models: list[LocalModel], tmp_path: Path) -> None:
    (cut := write_tiny_model(tmp_path / "cut") / "model.safetensors").write_bytes(b"")
    broken = [LocalModel("cut", cut.parent), LocalModel("\udcff", models[1].folder)]
    pool = Pool(load, ServerSettings(), models[:1], others=lambda: broken)
    with serve_pool(pool) as server:
        for path in ("/v1/models", "/api/tags", "/api/v0/models"):
            assert server.get(path).status_code == 200


def test_clients_do_not_learn_where_a_broken_model_is(
    models: list[LocalModel], tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "private" / "odd")
    (folder / "tokenizer.json").write_text("{")
    odd = LocalModel("odd", folder)
    with serve_pool(Pool(load, ServerSettings(), models[:1], others=lambda: [odd])) as server:
        answer = server.post("/api/show", {"model": "odd"})
    assert answer.status_code == 500
    assert "tokenizer in odd does not load" in answer.text
    assert str(tmp_path) not in answer.text


def test_every_contract_lists_all_models(all_models: LiveServer) -> None:
    names = ["large-coder", "quick", "somebody/talker"]
    listed = all_models.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == names
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (*names[::2], False)
    assert {model["type"] for model in listed["data"]} == {"model"}
    tags = all_models.get("/api/tags").json()["models"]
    assert [model["name"] for model in tags] == [f"{name}:latest" for name in names]
    states = all_models.get("/api/v0/models").json()["data"]
    assert [model["state"] for model in states] == ["loaded", "not-loaded", "not-loaded"]
    assert all_models.get("/api/v0/models/talker").json()["publisher"] == "somebody"
    shown = all_models.ask("/api/show", {"model": "talker"})
    assert shown["capabilities"] == ["completion", "insert"]
    assert loaded(all_models) == ["large-coder:latest"], "asking about a model does not load it"


def test_the_tokenizer_of_a_model_on_disk_is_read_once(
    all_models: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_models.ask("/api/show", {"model": "talker"})
    monkeypatch.setattr(loading, "load_tokenizer", lambda _: pytest.fail("reads it again"))
    assert all_models.ask("/api/show", {"model": "talker"})["capabilities"]


def test_the_model_used_longest_ago_leaves_for_another(serving: Serve) -> None:
    with serving(room=2.2) as server:
        for name in ("talker", "small-coder", "talker", "large-coder"):
            assert complete(server, name).status_code == 200
        assert sorted(loaded(server)) == ["large-coder:latest", "somebody/talker:latest"]
        assert (server.pool.loads, server.pool.unloads) == (4, 2)


def test_traffic_on_three_models_with_room_for_two(serving: Serve) -> None:
    """None is lost, and each answer is that of its model."""
    with serving(room=3.5) as server:
        expected = {name: complete(server, name).json()["choices"] for name in NAMES}
    assert len({json.dumps(choices) for choices in expected.values()}) == len(NAMES)
    with serving(room=2.2) as server, ThreadPoolExecutor(6) as clients:

        def ask(number: int) -> bool:
            name = NAMES[(number // 5 + number % 2) % 3]
            most = sum(seat.service is not None for seat in server.pool.seats) <= 2
            return most and complete(server, name).json().get("choices") == expected[name]

        assert all(clients.map(ask, range(60)))
        assert server.pool.unloads >= server.pool.loads - 2 > 0


def test_a_model_leaves_when_its_time_is_over(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.01)
    with serving(keep_alive=math.inf) as server:
        body = {"model": "talker", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
        server.ask("/api/generate", body | {"keep_alive": "1h"})
        running = {it["name"]: it["expires_at"] for it in server.get("/api/ps").json()["models"]}
        assert running["large-coder:latest"].startswith("9999")
        assert not running["somebody/talker:latest"].startswith("9999")
        said = server.ask("/api/generate", {"model": "talker", "keep_alive": 0})
        assert said["done_reason"] == "unload"
        wait_until(lambda: len(server.pool.seats) == 1)
        assert loaded(server) == ["large-coder:latest"]
        body["keep_alive"] = "1ms"
        server.ask("/api/generate", body)
        server.log.wait_for("unloaded somebody/talker")
        for time in ("soon", "-1abc", "1h2", "1" * 10_000 + "x"):
            refused = server.post("/api/generate", {"model": "talker", "keep_alive": time})
            assert "`keep_alive`" in refused.json()["error"]
        assert complete(server, "talker", keep_alive="10m").status_code == 200
        wrong = {"model": "talker", "prompt": "a", "n_predict": "many", "keep_alive": 0}
        assert server.post("/completion", wrong).status_code == 400
        assert "somebody/talker:latest" in loaded(server), "a refused request unloads nothing"


def test_what_does_not_fit_says_what_would_have_to_go(serving: Serve) -> None:
    with serving(room=1.2, keep_alive=math.inf) as server:
        refused = complete(server, "talker")
        assert refused.status_code == 503
        assert "large-coder would have to be unloaded, but --keep-alive -1" in refused.text
        assert complete(server, "large-coder", keep_alive="10m").status_code == 200
        assert complete(server, "talker").status_code == 200
        assert loaded(server) == ["somebody/talker:latest"]


def test_a_request_that_is_refused_loads_and_unloads_nothing(serving: Serve) -> None:
    with serving(room=1.2, queue=1) as server:
        pool = server.pool
        waiting = property(lambda _: 1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pool, "waiting", waiting)
            assert complete(server, "talker").status_code == 429
        assert (len(pool.seats), pool.loads, pool.unloads) == (1, 1, 0)


def test_the_server_is_well_while_it_loads_a_model_again(serving: Serve) -> None:
    held = Flag()

    def slow(model: LocalModel, spare: int) -> Engine:
        assert model.name != "talker" or held.wait(PATIENCE_S)
        return load(model, spare)

    with serving(loader=slow) as server, ThreadPoolExecutor(1) as clients:
        server.ask("/api/generate", {"model": "large-coder", "keep_alive": 0})
        wait_until(lambda: not server.pool.seats)
        asked = clients.submit(complete, server, "talker")
        wait_until(lambda: server.pool.loading)
        health = server.get("/health")
        held.set()
        assert (health.status_code, health.json()["loading"]) == (200, ["somebody/talker"])
        assert asked.result().status_code == 200


def test_models_that_turn_out_larger_leave(serving: Serve, taken: float) -> None:
    with serving(room=3.5) as server:
        for name in NAMES:
            assert complete(server, name).status_code == 200
        for seat in server.pool.seats:
            seat.nbytes = round(2 * taken)
        assert complete(server, "talker").status_code == 200
        wait_until(lambda: [seat.model.name for seat in server.pool.seats] == ["somebody/talker"])


def test_a_model_whose_folder_is_gone_is_not_found(
    models: list[LocalModel], tmp_path: Path
) -> None:
    gone = LocalModel("gone", write_tiny_model(tmp_path / "gone"))
    with serve_pool(Pool(load, ServerSettings(), models[:1], others=lambda: [gone])) as server:
        server.get("/v1/models")
        shutil.rmtree(gone.folder)
        assert server.post("/api/show", {"model": "gone"}).status_code == 404


def test_no_client_can_keep_a_model_for_itself(serving: Serve) -> None:
    with serving(room=1.2) as server:
        assert complete(server, "talker", keep_alive=-1).status_code == 200
        assert complete(server, "large-coder").status_code == 200


def test_a_model_larger_than_the_memory_is_refused(
    models: list[LocalModel], tmp_path: Path, taken: float
) -> None:
    huge = LocalModel("huge", write_tiny_model(tmp_path / "huge", intermediate_size=4096))
    room = taken * 1.1
    with serve_pool(
        Pool(load, ServerSettings(), models[:1], others=lambda: [huge], memory=lambda: room)
    ) as server:
        refused = complete(server, "huge")
        assert (refused.status_code, "for its weights" in refused.text) == (400, True)
        assert loaded(server) == ["large-coder:latest"], "nothing has to go for it"


class Gate:
    """Loads models, all but the first when it is opened."""

    def __init__(self) -> None:
        self.reached, self.open = Flag(), Flag()

    def __call__(self, model: LocalModel, _: int) -> Engine:
        if model.name != NAMES[0]:
            self.reached.set()
            self.open.wait()
        return load(model)


def test_others_are_answered_while_a_model_loads(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ERRORS_COME_S", "SILENCE_S"):
        monkeypatch.setattr(app, name, 0.01)
    gate = Gate()
    with serving(loader=gate) as server, ThreadPoolExecutor(2) as clients:
        streamed = clients.submit(complete, server, "talker", stream=True)
        wrong = clients.submit(complete, server, "talker", stream=True, top_p=2)
        assert gate.reached.wait()
        assert complete(server, "large-coder").status_code == 200
        assert server.get("/health").json() == {"status": "ok", "loading": ["somebody/talker"]}
        wait_until(lambda: any(seat.users == 2 for seat in server.pool.seats))
        gate.open.set()
        assert b": loading somebody/talker\n\n" in streamed.result().content
        *_, done = parse_events(streamed.result().text)
        assert done == "[DONE]"
        (error,) = parse_events(wrong.result().text)
        assert (wrong.result().status_code, error["error"]["param"]) == (200, "top_p")


def test_a_model_that_does_not_load_says_why_and_is_tried_again(
    models: list[LocalModel], serving: Serve
) -> None:
    failures = [ModelLoadError(f"{models[2].folder} is damaged.")]

    def failing(model: LocalModel, _: int) -> Engine:
        if model is models[2] and failures:
            raise failures.pop()
        return load(model)

    with serving(loader=failing) as server:
        refused = complete(server, "talker")
        assert (refused.status_code, "somebody/talker is damaged" in refused.text) == (500, True)
        assert complete(server, "talker").status_code == 200


def test_a_model_that_is_loaded_and_not_served_leaves(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidRequestError("It cannot be served.")

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr(pools, "Service", refuse)
            assert complete(server, "talker").status_code == 400
        assert len(server.pool.seats) == 1
        assert complete(server, "talker").status_code == 200


def test_a_model_that_waits_for_room_can_be_deleted(
    models: list[LocalModel], taken: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "remove", lambda _: 0)
    first, wanted, other = (
        LocalModel(name, model.folder, "hub")
        for name, model in zip(("s/a", "s/b", "s/c"), models, strict=True)
    )
    pool = Pool(
        load, ServerSettings(), [first], others=lambda: [wanted, other], memory=lambda: 1.2 * taken
    )
    with serve_pool(pool) as server, ThreadPoolExecutor(3) as clients:
        asked = [clients.submit(complete, server, "s/a", max_tokens=900, ignore_eos=True)]
        wait_until(lambda: pool.seats[0].users)
        asked.append(clients.submit(complete, server, "s/b"))
        wait_until(lambda: pool.loading)
        asked.append(clients.submit(delete, server, {"model": "s/b"}))
        wait_until(
            lambda: asked[-1].done() or any(it.model == wanted and it.leaving for it in pool.seats)
        )
        assert complete(server, "s/c").status_code == 200
        assert [it.result().status_code for it in asked] == [200] * 3


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"model": ""}, 400),
        ({"name": ":latest"}, 400),
        ({"model": "default"}, 404),
        ({"model": "s/a"}, 409),
    ],
)
def test_what_is_deleted_must_be_named_and_not_be_needed(
    models: list[LocalModel], body: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "remove", lambda _: pytest.fail("deletes"))
    first = LocalModel("s/a", models[0].folder, "hub")
    with serve_pool(Pool(load, ServerSettings(), [first])) as server:
        assert delete(server, body).status_code == status


def test_others_are_answered_while_one_model_is_fetched(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = Flag(), Flag()

    def run(_: Download) -> None:
        begun.set()
        over.wait()

    monkeypatch.setattr(endpoints, "plan", lambda name: Download(name, {}, 1))
    monkeypatch.setattr(Download, "run", run)
    with serving() as server, ThreadPoolExecutor(1) as clients:
        fetched = clients.submit(server.post, "/api/pull", {"model": "s/one", "stream": False})
        begun.wait()
        try:
            for name, status in (("s/other", 503), ("", 400)):
                assert server.post("/api/pull", {"model": name}).status_code == status
            assert server.get("/v1/models").status_code == 200
        finally:
            over.set()
        assert fetched.result().json() == {"status": "success"}


def test_a_models_own_sampling_is_below_the_operators_and_the_requests(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "own")
    settings = {"temperature": 0.6, "top_k": 20, "top_p": "wrong", "min_p": 10**400}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    given = ServerSettings(defaults=Defaults(top_k=7), keep_alive=math.inf)
    with serve_pool(Pool(load, given, [LocalModel("own", folder)])) as server:
        found = server.get("/props").json()["default_generation_settings"]["params"]
        assert (found["temperature"], found["top_k"], found["top_p"]) == (0.6, 7, 0.95)
        asked = server.ask("/completion", {"prompt": "a", "n_predict": 1, "temperature": 0.1})
        assert asked["generation_settings"]["temperature"] == 0.1
        assert "temperature 0.6" in server.ask("/api/show", {"model": "own"})["parameters"]


def test_caches_and_then_idle_models_go_before_the_machine_swaps(
    models: list[LocalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.01)
    short = Flag()
    pool = Pool(
        load, ServerSettings(), models[:1], others=lambda: models[1:], is_short=short.is_set
    )
    with serve_pool(pool) as server:
        assert complete(server, "large-coder", keep_alive=-1).status_code == 200
        assert complete(server, "talker").status_code == 200
        assert all(any(slot.nbytes for slot in one.engine.slots) for one in pool.services)
        short.set()
        server.log.wait_for("memory is short: emptying the caches of earlier requests")
        server.log.wait_for("memory is short: unloading somebody/talker")
        wait_until(lambda: len(pool.seats) == 1)
        assert not any(slot.nbytes for slot in server.service.engine.slots)
        assert complete(server, "large-coder").status_code == 200, "it is to stay, and does"


def test_a_look_at_the_memory_that_fails_is_not_the_last(
    models: list[LocalModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "LOOK_S", 0.01)

    def is_short() -> bool:
        raise OSError("no figures")

    with serve_pool(Pool(load, ServerSettings(), models[:1], is_short=is_short)) as server:
        for _ in range(2):
            server.log.wait_for("the memory check failed: no figures")
