"""The page of `penstock ui`: its numbers are those of the commands, and it is safe to leave open."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmarks.many_streams import add_streams
from starlette.testclient import TestClient
from tests.support.cli import Ended
from tests.support.stored_lake import Lake
from tests.ui.serving import TOKEN, config
from tests.ui.shown_store import HOSTILE, ShownStore

from penstock.committers.contract import StreamKey
from penstock.committers.errors import ConfigurationError
from penstock.committers.store.sql import open_store
from penstock.operating.formatting import size
from penstock.ui.app import create_app
from penstock.ui.pages import place_of
from penstock.ui.security import HEADERS

QUERY = "8d9a1c2b-5a0f-4f4e-9d3e-000000000001"
SECRET = "hunter22"


def client(store_url: str, host: str = "localhost", **given: object) -> TestClient:
    app = create_app(config(store_url, **given))
    return TestClient(app, base_url=f"http://{host}", follow_redirects=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownStore]:
    made = ShownStore(f"sqlite:///{tmp_path_factory.mktemp('ui')}/store.db", batches=8)
    made.parked("payments", "iceberg", "prod:shop.payments")
    made.failing("notifications", "http", "https://ingest.example/v1/rows")
    made.with_letters("customers", "opensearch", "https://search.example/customers")
    made.decoupled("orders", "delta", "s3://lake/shop/orders", waiting=0)
    made.coupled("sessions", "iceberg", "prod:web.sessions", waiting=1)
    made.hostile()
    with made.store:
        yield made


@pytest.fixture(scope="module")
def page(shown: ShownStore) -> TestClient:
    return client(shown.url)


class Parsed(HTMLParser):
    """All elements of a page, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def field(self, name: str) -> str:
        return next(found["value"] or "" for _, found in self.elements if found.get("name") == name)


def read(page: TestClient, path: str) -> Parsed:
    answer = page.get(path)
    assert answer.status_code == 200, answer.text
    return Parsed(answer.text)


def key_of(shown: ShownStore, name: str) -> StreamKey:
    return next(one.key for one in shown.store.streams() if one.query_name == name)


def rows_of(page: TestClient, path: str) -> list[str]:
    """The text of each row of the list."""
    answer = page.get(path).text
    return [Parsed(row).text for row in re.findall(r"<tr>.*?</tr>", answer, re.S)[1:]]


# Numbers --------------------------------------------------------------------------------------------


def test_the_list_has_the_numbers_of_the_status_command(page: TestClient, shown: ShownStore) -> None:
    told = Ended("status", "--json", "--store", shown.url).json["streams"]
    rows = rows_of(page, "/")
    assert len(rows) == len(told) == 6
    for one in told:
        if one["query_name"] == HOSTILE:
            continue
        (row,) = [text for text in rows if f" {one['query_name']} " in text]
        assert one["table_uri"] in row
        assert f" {one['last_batch']['batch_id']} " in row
        assert f"{one['committed_rows']:,} {size(one['committed_bytes'])}" in row
        if one["pending"]:
            assert re.search(rf"\b{one['pending']} batch", row), row
        if one["delivery"] and one["delivery"]["rows_per_s"]:
            assert f" {one['delivery']['rows_per_s']:,.1f} " in row
        if one["delivery"] and one["delivery"]["error"]:
            assert row.startswith(("PARKED", "FAILING"))


def test_the_most_urgent_streams_come_first(page: TestClient) -> None:
    states = [row.split()[0] for row in rows_of(page, "/")]
    assert states == ["PARKED", "PARKED", "FAILING", "PENDING", "IDLE", "IDLE"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=SHOP+orders", {"orders"}),
        ("q=00000001-7c1e", {"payments"}),
        ("q=%25", set()),
        ("only=PARKED&kind=iceberg", {"payments"}),
        ("only=letters", {"customers"}),
        ("only=skipped", {"customers"}),
        ("kind=opensearch", {"customers"}),
        ("only=nonsense&sort=nonsense&page=99999999&kind=", {"payments", "orders", "sessions"}),
    ],
)
def test_a_search_finds_the_streams_of_all_its_words(page: TestClient, query: str, names: set[str]) -> None:
    found = " ".join(rows_of(page, f"/?{query}"))
    known = {"payments", "notifications", "customers", "orders", "sessions"}
    assert {name for name in known if f" {name} " in found} >= names
    if "nonsense" not in query:
        assert {name for name in known if f" {name} " in found} == names


def test_a_stream_has_the_numbers_of_history(page: TestClient, shown: ShownStore) -> None:
    key = key_of(shown, "orders")
    told = Ended("history", key.query_id, "--json", "--store", shown.url).json
    text = read(page, place_of(key)).text
    for batch in told["batches"]:
        assert f" {batch['batch_id']} {batch['state']} {batch['rows']:,} " in text
    for one in told["deliveries"]:
        assert f"{one['state']} {one['rows']:,} {one['source_files']}" in text
    assert "all that was due" in text


def test_what_is_parked_shows_its_error_and_the_command_that_resolves_it(
    page: TestClient, shown: ShownStore
) -> None:
    key = key_of(shown, "payments")
    parsed = read(page, place_of(key))
    assert "SchemaMismatchError" in parsed.text
    commands = [found["data-copy"] or "" for tag, found in parsed.elements if "data-copy" in found]
    assert commands[0] == f"penstock retry {key.query_id} --store {shown.url}"
    assert f"penstock skip {key.query_id} 1 " in " ".join(commands)
    assert not [tag for tag, found in parsed.elements if tag == "form"]


def test_dead_letters_are_shown_with_their_rows(page: TestClient, shown: ShownStore) -> None:
    key = key_of(shown, "customers")
    told = Ended("dead-letters", "show", key.query_id, "--json", "--store", shown.url).json["letters"]
    text = read(page, f"{place_of(key)}/letters").text
    assert len(told) == 2
    for letter in told:
        assert letter["id"] in text
        assert letter["row"] in text


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_table_is_shown_with_the_sizes_of_its_files(tmp_path: Path, kind: str) -> None:
    with Lake(tmp_path, None, QUERY, kind) as lake:
        for batch_id in (0, 1):
            lake.commit(batch_id, lake.write(batch_id))
        text = read(client(lake.store_url), f"{place_of(lake.stream)}/table").text
        sizes = [(lake.table / path).stat().st_size for path in lake.on_disk()]
        assert f"Files 4 {size(sum(sizes))}" in text
        assert "Rows 4 with the deleted ones Deleted 0.0 %" in text
        lake.lake.forget()
        assert "no table" in read(client(lake.store_url), f"{place_of(lake.stream)}/table").text


def test_what_is_not_there_is_not_found(page: TestClient, shown: ShownStore) -> None:
    place = place_of(key_of(shown, "orders"))
    assert page.get(f"{place}/batches/99").status_code == 404
    assert page.get("/streams/no/such").status_code == 404
    assert page.get("/static/../app.py").status_code == 404


@pytest.mark.slow
def test_a_list_of_10_000_streams_takes_less_than_a_second(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with open_store(url) as store:
        add_streams(store, tmp_path, 10_000)
    page = client(url)
    page.get("/")
    for path in ("/", "/?page=150", "/?q=stream777&sort=name", "/?only=IDLE&kind=http&sort=rows"):
        took = []
        for _ in range(3):
            began = time.perf_counter()
            assert page.get(path).status_code == 200
            took.append(time.perf_counter() - began)
        assert min(took) < 1, path
    assert "7,451–7,500 of 10,000" in page.get("/?page=150").text


# Safety ---------------------------------------------------------------------------------------------


def every_path(shown: ShownStore) -> list[str]:
    places = [place_of(one.key) for one in shown.store.streams()]
    parts = ("", "/letters", "/table", "/batches/7", "/batches/1")
    return ["/", "/nothing", f"/?q={HOSTILE}", *(f"{place}{part}" for place in places for part in parts)]


@pytest.fixture(scope="module")
def every_page(shown: ShownStore) -> dict[str, str]:
    """The text of each page, by its path."""
    page = client(shown.url)
    return {path: page.get(path).text for path in every_path(shown)}


def test_names_and_errors_cannot_become_html(every_page: dict[str, str]) -> None:
    scripts, images = re.compile(r"/static/penstock\.js\?v=\w+"), re.compile(r"/static/icon\.svg\?v=\w+")
    for path, text in every_page.items():
        for tag, found in Parsed(text).elements:
            assert tag != "script" or scripts.fullmatch(found["src"] or ""), path
            assert tag != "img" or images.fullmatch(found["src"] or ""), path


def test_no_page_has_a_password_or_a_control_character(every_page: dict[str, str], shown: ShownStore) -> None:
    assert SECRET in str(shown.store.streams())
    for path, text in every_page.items():
        assert SECRET not in text, path
        assert "\x1b" not in text, path


def test_a_page_has_no_inline_scripts_or_styles_and_loads_nothing_of_others(
    every_page: dict[str, str],
) -> None:
    for path, text in every_page.items():
        for tag, found in Parsed(text).elements:
            assert "style" not in found, path
            assert not [name for name in found if name.startswith("on")], path
            for name in ("src", "href", "action"):
                assert (found.get(name) or "/").startswith("/"), (tag, found)


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/penstock.css", "/healthz", "/login"])
def test_each_answer_has_the_headers(page: TestClient, path: str) -> None:
    headers = page.get(path).headers
    assert set(map(str.lower, HEADERS)) <= set(headers)
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_other_host_names_are_refused(shown: ShownStore) -> None:
    page = client(shown.url, hosts=("Streams.example",))
    own = ("localhost:8642", "127.0.0.1", "[::1]:8642", "10.1.2.3:8080", "streams.example")
    others = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "[", "")
    for hosts, status in ((own, 303), (others, 400)):
        for host in hosts:
            assert page.get("/login", headers={"host": host}).status_code == status, host
            assert page.get("/healthz", headers={"host": host}).status_code == 200


def test_with_a_token_each_page_needs_it(shown: ShownStore) -> None:
    page = client(shown.url, token=TOKEN)
    for path in every_path(shown)[:8]:
        answer = page.get(path)
        assert (answer.status_code, answer.headers["location"].partition("?")[0]) == (303, "/login")
    assert page.get("/login").status_code == 200
    assert "store.db" not in page.get("/login").text
    assert page.post("/login", data={"token": "wrong"}).status_code == 403
    for after, leads_to in (("/?q=a", "/?q=a"), ("//evil.example", "/"), ("https://evil.example", "/")):
        answer = page.post("/login", data={"token": TOKEN, "next": after})
        assert (answer.status_code, answer.headers["location"]) == (303, leads_to)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert page.get("/").status_code == 200


def test_a_session_ends_and_cannot_be_made_up(shown: ShownStore, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client(shown.url, token=TOKEN)
    page.post("/login", data={"token": TOKEN})
    (name, value), *_ = page.cookies.items()
    for forged in ("", "a", "a.b", "YQ.99999999999.aa." + "0" * 64, value[:-1] + "z"):
        page.cookies.clear()
        page.cookies.set(name, forged)
        assert page.get("/").status_code == 303, forged
    page.cookies.clear()
    page.cookies.set(name, value)
    assert page.get("/").status_code == 200
    now = time.time()
    monkeypatch.setattr("penstock.ui.security.time.time", lambda: now + 13 * 3600)
    assert page.get("/").status_code == 303


@pytest.mark.parametrize(
    ("token", "allows_actions"), [("", True), ("short", False)], ids=["no token", "a short token"]
)
def test_a_page_is_not_started_without_a_good_token(token: str, allows_actions: bool) -> None:
    with pytest.raises(ConfigurationError, match="PENSTOCK_UI_TOKEN"):
        config("sqlite:///x", token=token, allows_actions=allows_actions)


# Actions --------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Batches 0 and 1 committed, batches 2 and 3 prepared, and parked."""
    with Lake(tmp_path, None, QUERY) as lake:
        for batch_id in (0, 1):
            lake.commit(batch_id, lake.write(batch_id))
        for batch_id in (2, 3):
            lake.prepare(batch_id, lake.write(batch_id))
        lake.store.deliveries.park(lake.stream, "ops", "restore")
        yield lake


def signed_in(lake: Lake, who: str = "ada") -> TestClient:
    page = client(lake.store_url, allows_actions=True)
    page.post("/login", data={"token": TOKEN, "who": who})
    return page


def act(page: TestClient, lake: Lake, action: str, **fields: str) -> tuple[int, str]:
    """Send a form as the page has it. Returns the status and where it leads to, or the text."""
    place = place_of(lake.stream)
    form = {"form_key": read(page, place).field("form_key"), **fields}
    answer = page.post(f"{place}/{action}", data=form)
    return answer.status_code, answer.headers.get("location", "").removeprefix(place) or answer.text


def test_a_read_only_page_changes_nothing(lake: Lake) -> None:
    page = client(lake.store_url, token=TOKEN)
    page.post("/login", data={"token": TOKEN})
    assert act(page, lake, "retry")[0] == 403
    assert "<button class" not in page.get(place_of(lake.stream)).text.partition("<main")[2]
    assert lake.store.streams()[0].delivery.parked_at is not None


def test_what_an_operator_decides_is_stored_with_the_name(lake: Lake) -> None:
    page = signed_in(lake)
    assert act(page, lake, "retry", reason="restored") == (303, "?done=retry")
    assert lake.store.streams()[0].delivery.parked_at is None
    assert act(page, lake, "retry") == (303, "?done=nothing")
    assert act(page, lake, "park", reason=" ")[0] == 409
    assert act(page, lake, "park", reason="again") == (303, "?done=park")
    assert act(page, lake, "skip", batch="2", reason="corrupt")[0] in (303, 409)
    assert act(page, lake, "nonsense")[0] == 404
    taken = [(one.who, one.what, one.why) for one in lake.store.deliveries.operator_actions(lake.stream)]
    assert taken[1:3] == [("ada", "retry", "restored"), ("ada", "park", "again")]


def test_pending_batches_are_committed(lake: Lake) -> None:
    assert act(signed_in(lake), lake, "recover") == (303, "?done=recover")
    assert len(lake.rows()) == 8


@pytest.mark.slow
def test_a_batch_is_skipped_and_acknowledged(lake: Lake, tmp_path: Path) -> None:
    settings = (
        f'{{"delivery": "decoupled", "checkpoint": "{tmp_path}/c", "options": {{"path": "{lake.table}"}}}}'
    )
    lake.store.register_stream(lake.stream, lake.kind, "ids", lake.table_id, settings)
    page = signed_in(lake)
    assert act(page, lake, "skip", batch="2", reason="corrupt") == (303, "?done=skip")
    assert lake.store.streams(key=lake.stream)[0].skipped.unacknowledged == (2,)
    letters = read(page, f"{place_of(lake.stream)}/letters").text
    assert "corrupt" in letters
    assert '"id": 5' in letters
    assert act(page, lake, "acknowledge") == (303, "?done=acknowledge")
    status, text = act(page, lake, "skip", batch="2", reason="again")
    assert (status, "is ABORTED, not PREPARED" in text) == (409, True)
    assert act(page, lake, "resend") == (303, "?done=resend")
    assert len(lake.rows()) == 6


def test_a_form_of_another_page_does_nothing(lake: Lake) -> None:
    place, page = place_of(lake.stream), signed_in(lake)
    good = read(page, place).field("form_key")
    other = read(signed_in(lake), place).field("form_key")
    for key in ("", "0" * 64, other):
        assert page.post(f"{place}/retry", data={"form_key": key}).status_code == 403
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = page.post(f"{place}/retry", data={"form_key": good}, headers=headers)
        assert answer.status_code == 403, headers
    assert page.get(f"{place}/retry").status_code == 405
    assert page.post(f"{place}/retry", json={"form_key": good}).status_code == 415
    assert page.post(f"{place}/retry", data={"form_key": good, "x": "y" * 70_000}).status_code == 413
    assert client(lake.store_url, allows_actions=True).post(f"{place}/retry").status_code == 401
    assert lake.store.streams()[0].delivery.parked_at is not None
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert page.post(f"{place}/retry", data={"form_key": good}, headers=own).status_code == 303


def test_signing_out_ends_the_session(lake: Lake) -> None:
    page = signed_in(lake)
    assert page.post("/logout", data={"form_key": "0"}).status_code == 403
    key = read(page, "/").field("form_key")
    assert page.post("/logout", data={"form_key": key}).status_code == 303
    assert page.get("/").status_code == 303


# The command ----------------------------------------------------------------------------------------


def test_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, shown: ShownStore) -> None:
    monkeypatch.setattr(
        "penstock.cli.commands.ui.find_spec", lambda name: None if name == "uvicorn" else name
    )
    ended = Ended("ui", "--store", shown.url)
    assert (ended.code, "pip install 'penstock[ui]'" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "host", "words"),
    [
        ((), "127.0.0.1", "The page is at http://127.0.0.1:"),
        (("--allow-actions",), "127.0.0.1", "Its token, valid until this process ends: "),
        (("--host", "0.0.0.0"), "0.0.0.0", "Warning: everybody who can reach 0.0.0.0:"),
    ],
    ids=["read-only", "actions", "all addresses"],
)
def test_the_command_serves_on_the_loopback_unless_told(
    monkeypatch: pytest.MonkeyPatch, shown: ShownStore, arguments: tuple[str, ...], host: str, words: str
) -> None:
    def serve(given: object, listening: object) -> None:
        served.append((given, listening.getsockname()[0]))  # type: ignore[attr-defined]
        listening.close()  # type: ignore[attr-defined]

    served: list[tuple[object, str]] = []
    monkeypatch.setattr("penstock.ui.server.serve", serve)
    ended = Ended("ui", "--store", shown.url, "--port", "0", *arguments, columns=None)
    assert ended.code == 0, ended.err
    assert words in ended.out + ended.err
    ((given, address),) = served
    assert address == host
    assert SECRET not in repr(given)


def test_a_port_in_use_is_an_error(shown: ShownStore) -> None:
    from penstock.ui.server import listen

    with listen("127.0.0.1", 0) as taken:
        ended = Ended("ui", "--store", shown.url, "--port", str(taken.getsockname()[1]))
    assert (ended.code, "Choose another --port" in ended.err) == (2, True)
