"""Tests of an attacker with access to the broker and without the mail keys, and of access to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest
from nats.aio.client import Client

from dragoman.errors import SettingsError
from dragoman.mail import Encryptor, Mail, supervisor
from dragoman.mail.broker_access import BrokerAccess
from dragoman.mail.message_codec import MESSAGE_ID, ORIGIN, MessageCodec
from dragoman.mail.nats import NatsTransport, _Client
from dragoman.mail.stored_letter import to_stored, to_transport
from dragoman.store import open_store
from tests.conftest import ROOT
from tests.mail.brokers import Broker, free_port, run_broker
from tests.mail.certificates import Certificates, Operator, new_nkey
from tests.mail.conftest import result
from tests.mail.test_encryption import KEY, OTHER, find_files_with
from tests.mail.test_nats import broker, open_mail, receive_ids, wait_for_receipts
from tests.mail.timeouts import time_limit

__all__ = ["broker"]

LETTERS = "dragoman.mail._"
RECEIPTS = "dragoman.mail-receipts"


@contextlib.asynccontextmanager
async def connect_attacker(broker: Broker) -> AsyncIterator[Client]:
    """Connect a client that has no mail keys."""
    client = await nats.connect(broker.url)
    try:
        yield client
    finally:
        await client.close()


async def wait_for_message(client: Client, count: int) -> Any:
    """Wait until the stream has this many messages and return its first."""
    async with time_limit(60, "a letter on the broker"):
        while True:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                state = (await client.jetstream().stream_info("DRAGOMAN_MAIL")).state
                if state.messages >= count:
                    return await client.jetstream().get_msg("DRAGOMAN_MAIL", seq=state.first_seq)
            await asyncio.sleep(0.02)


async def wait_for_dead_letters(mail: Mail, reasons: list[str]) -> None:
    """Wait until the dead letters have these reasons."""
    async with time_limit(60, f"dead letters: {reasons}"):
        while sorted(dead.reason for dead in await mail.dead_letters()) != sorted(reasons):
            await asyncio.sleep(0.02)


async def test_forged_receipt_does_not_change_the_outbox(
    tmp_path: Path, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    key = ("ARCH", "", "L1")
    data = msgspec.json.encode([key])
    async with open_mail(tmp_path, "one", broker) as here, connect_attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        letter = await wait_for_message(client, 1)
        subject = f"{RECEIPTS}.{await here.store.mail.origin()}"
        other = MessageCodec(Encryptor.from_text(f"a:{OTHER}"), here.store.clock)
        own = MessageCodec(here.encryptor, here.store.clock)
        forged = [
            ({}, data),  # unsigned
            other.encode("receipt", subject, data),  # another key with the same name
            own.encode("receipt", f"{RECEIPTS}.another", data),  # a genuine receipt of another store
            own.encode("letter", subject, data),  # a genuine message that is not a receipt
            (letter.headers, letter.data),
            (letter.headers, data),
        ]
        for headers, body in forged:
            await client.publish(subject, body, headers=headers)
        await client.flush()
        async with time_limit(60, "six rejections"):
            while caplog.text.count("a receipt was rejected") < len(forged):
                await asyncio.sleep(0.02)
        assert [box.away for box in await here.counts()] == [1]
        async with open_mail(tmp_path, "two", broker) as there:
            assert await receive_ids(there, "ARCH", 1) == ["L1"]
            await wait_for_receipts(here)


async def test_forged_letters_are_dead_letters_and_genuine_ones_arrive(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, connect_attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        genuine = await wait_for_message(client, 1)
        forged = to_transport(to_stored(result("T9", message_id="FORGED"), here.encryptor))
        other = MessageCodec(Encryptor.from_text(f"a:{OTHER}"), here.store.clock)
        unknown = MessageCodec(Encryptor.from_text(f"z:{OTHER}"), here.store.clock)
        changed = bytes([*genuine.data[:-1], genuine.data[-1] ^ 1])
        headers_without_id = {name: value for name, value in genuine.headers.items() if name != MESSAGE_ID}
        attempts: list[Any] = [
            (f"{LETTERS}.ARCH", forged, {ORIGIN: genuine.headers[ORIGIN]}),
            (f"{LETTERS}.ARCH", *reversed(other.encode("letter", f"{LETTERS}.ARCH", forged, {MESSAGE_ID: "x1"}))),
            (f"{LETTERS}.ARCH", *reversed(unknown.encode("letter", f"{LETTERS}.ARCH", forged, {MESSAGE_ID: "x2"}))),
            (f"{LETTERS}.ARCH", changed, {**headers_without_id, MESSAGE_ID: "x3"}),
            (f"{LETTERS}.CA", genuine.data, headers_without_id),
            (f"dragoman.mail.{b'ops'.hex()}.ARCH", genuine.data, headers_without_id),
        ]
        for subject, body, headers in attempts:
            await client.jetstream().publish(subject, body, headers=headers)
        async with open_mail(tmp_path, "two", broker) as there:
            assert await receive_ids(there, "ARCH", 1) == ["L1"]
            await there.receive("CA")
            team = there.for_team(team_id="ops")
            await team.receive("ARCH")
            reasons = ["unsigned_letter", "forged_letter", "unknown_mail_key", "forged_letter"]
            await wait_for_dead_letters(there, [*reasons, "forged_letter"])
            await wait_for_dead_letters(team, ["forged_letter"])
            await wait_for_receipts(here)
            assert [status.letter.letter_id for status in await there.letters()] == ["L1"]
            assert await team.letters() == []
            assert there.state == "ok"


async def test_replayed_letter_changes_nothing(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, connect_attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        genuine = await wait_for_message(client, 1)
        async with open_mail(tmp_path, "two", broker) as there:
            assert await receive_ids(there, "ARCH", 1) == ["L1"]
            await wait_for_receipts(here)
            await here.send(result("T2", message_id="L2"))
            for _ in range(3):  # core NATS, because JetStream drops a repeated id
                await client.publish(f"{LETTERS}.ARCH", genuine.data, headers=genuine.headers)
            assert await receive_ids(there, "ARCH", 1) == ["L2"]
            assert sorted(status.letter.letter_id for status in await there.letters()) == ["L1", "L2"]
            assert await there.receive("ARCH") == []
            assert await there.dead_letters() == []


async def test_repeated_forgery_is_one_dead_letter_without_a_notice(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker, keys=f"z:{OTHER}", resend_s=0.2) as here:
        await here.send(result("T1", message_id="L1"))
        async with open_mail(tmp_path, "two", broker) as there:
            await there.receive("ARCH")
            await wait_for_dead_letters(there, ["unknown_mail_key"])
            async with connect_attacker(broker) as client, time_limit(60, "the letter is sent again"):
                stream = client.jetstream()
                last = (await stream.stream_info("DRAGOMAN_MAIL")).state.last_seq
                while (await stream.stream_info("DRAGOMAN_MAIL")).state.last_seq < last + 2:
                    await asyncio.sleep(0.05)
            await wait_for_dead_letters(there, ["unknown_mail_key"])
            assert await there.letters() == []
        assert [box.away for box in await here.counts()] == [1]


async def test_signed_letter_for_another_team_than_its_subject_is_rejected(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker) as here, connect_attacker(broker) as client:
        codec = MessageCodec(here.encryptor, here.store.clock)
        await here.receive("ARCH")
        await wait_for_stream(client)
        for number, posted in enumerate(
            (
                to_stored(result("T1", message_id="L1"), here.encryptor, team_id="ops"),
                to_stored(result("T2", to="CA", message_id="L2"), here.encryptor),
            )
        ):
            extra_headers = {MESSAGE_ID: f"m{number}"}
            headers, data = codec.encode("letter", f"{LETTERS}.ARCH", to_transport(posted), extra_headers)
            await client.jetstream().publish(f"{LETTERS}.ARCH", data, headers=headers)
        await wait_for_dead_letters(here, ["wrong_mailbox"] * 2)
        assert await here.for_team(team_id="ops").letters() == []


async def wait_for_stream(client: Client) -> None:
    async with time_limit(60, "the stream"):
        while True:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await client.jetstream().stream_info("DRAGOMAN_MAIL")
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("sign_only", [False, True])
async def test_broker_can_read_letters_only_with_sign_only(tmp_path: Path, broker: Broker, sign_only: bool) -> None:
    async with open_mail(tmp_path, "one", broker, sign_only=sign_only) as here, connect_attacker(broker) as client:
        await here.send(result("T1", message_id="L1", output="the text of the letter"))
        genuine = await wait_for_message(client, 1)
        assert (b"the text of the letter" in genuine.data) is sign_only
        async with open_mail(tmp_path, "two", broker) as there:  # decodes both modes
            assert await receive_ids(there, "ARCH", 1) == ["L1"]


# --- keys ------------------------------------------------------------------------------------------------------------

OLD, NEW = f"old:{KEY}", f"new:{OTHER}"


async def test_keys_can_be_rotated_while_letters_are_in_transit(tmp_path: Path, broker: Broker) -> None:
    steps = [(OLD, OLD), (f"{OLD},{NEW}", OLD), (f"{OLD},{NEW}", f"{OLD},{NEW}"), (f"{NEW},{OLD}", f"{OLD},{NEW}")]
    steps += [(f"{NEW},{OLD}", f"{NEW},{OLD}"), (NEW, f"{NEW},{OLD}"), (NEW, NEW)]
    sent_count = 0
    for sender_keys, recipient_keys in steps:
        async with open_mail(tmp_path, "one", broker, keys=sender_keys, resend_s=0.2) as here:
            await here.send(result(f"T{sent_count}", message_id=f"L{sent_count}"))  # may be delivered in the next step
            sent_count += 1
            async with open_mail(tmp_path, "two", broker, keys=recipient_keys) as there:
                assert await receive_ids(there, "ARCH", 1) == [f"L{sent_count - 1}"]
                await wait_for_receipts(here)
                assert await there.dead_letters() == []


async def test_letter_signed_with_a_removed_key_is_resent_with_the_new_key(tmp_path: Path, broker: Broker) -> None:
    async with open_mail(tmp_path, "one", broker, keys=OLD) as here, connect_attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        await wait_for_message(client, 1)
    async with open_mail(tmp_path, "two", broker, keys=NEW) as there:
        await there.receive("ARCH")
        await wait_for_dead_letters(there, ["unknown_mail_key"])
        async with open_mail(tmp_path, "one", broker, keys=NEW) as here:
            assert await receive_ids(there, "ARCH", 1) == ["L1"]
            await wait_for_receipts(here)


async def test_remote_broker_requires_mail_keys(tmp_path: Path) -> None:
    for server in ("nats://broker:4222", "tls://user:hidden@10.0.0.1:4222", "broker"):
        async with open_store(f"sqlite:///{tmp_path / 'one.db'}") as store:
            with pytest.raises(SettingsError) as caught:
                async with Mail(store, transport=NatsTransport(["nats://127.0.0.1:4222", server])):
                    pass
        assert caught.value.code == "missing_mail_keys"
        assert "hidden" not in str(caught.value)


# --- access to the broker --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def create_documented_broker(title: str, folder: Path, files: Certificates, nkey: str = "") -> Broker:
    """Return a broker with the documented configuration and the ports, files and nkey of the test."""
    page = (ROOT / "docs" / "mail-delivery.md").read_text()
    match = re.search(rf'```text title="{title}"\n(.*?)```', page, re.DOTALL)
    assert match is not None
    created = Broker(folder)
    route = free_port()
    config = match[1].replace("/var/lib/nats", str(created.data)).replace("8222", str(created.monitor_port))
    for name, file in (("broker.pem", files.cert), ("broker-key.pem", files.key), ("ca.pem", files.ca)):
        config = config.replace(f"/etc/nats/{name}", str(file))
    config = re.sub(r'nkey: "\w+"', f'nkey: "{nkey}"', config)
    config = config.replace("0.0.0.0", "127.0.0.1").replace(":4222", f":{created.port}").replace(":6222", f":{route}")
    config = re.sub(r"broker-[23]:\d+", lambda _: f"127.0.0.1:{free_port()}", config)
    created.config = config.replace(f"broker-1:{route}", f"127.0.0.1:{route}")
    created.url = f"tls://127.0.0.1:{created.port}" if "tls" in config else created.url
    return created


@pytest.fixture
def tls_broker(tmp_path: Path, certificates: Certificates) -> Iterator[tuple[Broker, BrokerAccess]]:
    """The first of the three documented brokers, and valid access to it."""
    seed, public = new_nkey()
    file = tmp_path / "mail.seed"
    file.write_text(f"{seed}\n")
    created = create_documented_broker("nats.conf", tmp_path / "tls_broker", certificates, public)
    created.config = re.sub(
        r"cluster \{.*\n\}\n", "", created.config, flags=re.DOTALL
    )  # a single node would wait for its cluster
    ca, cert, key = map(str, (certificates.ca, certificates.cert, certificates.key))
    with run_broker(created):
        yield created, BrokerAccess(nkey=str(file), ca=ca, cert=cert, key=key)


async def can_connect(server: str, access: BrokerAccess) -> bool:
    """Return whether a client with this access can connect."""
    client = _Client(access, requires_tls=server.startswith("tls"))
    try:
        await client.connect(
            server, allow_reconnect=False, connect_timeout=5, error_cb=_ignore_error, **access.options()
        )
    except (nats.errors.Error, OSError):
        return False
    finally:
        with contextlib.suppress(TimeoutError):  # close() hangs after a failed handshake
            async with asyncio.timeout(0.5):
                await client.close()
    return True


async def _ignore_error(_: Exception) -> None: ...


async def test_documented_brokers_accept_only_the_nkey(tmp_path: Path, tls_broker: tuple[Broker, BrokerAccess]) -> None:
    broker, access = tls_broker
    stranger = tmp_path / "stranger.seed"
    stranger.write_text(new_nkey()[0])
    assert await can_connect(broker.url, access)
    for other in (
        msgspec.structs.replace(access, nkey=None),
        msgspec.structs.replace(access, nkey=str(stranger)),
        msgspec.structs.replace(access, nkey=None, user="root", password="root"),
        msgspec.structs.replace(access, nkey=None, token="root"),
        msgspec.structs.replace(access, cert=None, key=None),
        msgspec.structs.replace(access, ca=None),
    ):
        assert not await can_connect(broker.url, other)


async def test_documented_brokers_deliver_letters(tmp_path: Path, tls_broker: tuple[Broker, BrokerAccess]) -> None:
    broker, access = tls_broker
    async with (
        open_mail(tmp_path, "one", broker, access=access) as here,
        open_mail(tmp_path, "two", broker, access=access) as there,
    ):
        await here.send(result("T1", message_id="L1", output="the text of the letter"))
        assert await receive_ids(there, "ARCH", 1) == ["L1"]
        await wait_for_receipts(here)
        assert (await here.health())["is_signed"] is True
        assert here.state == there.state == "ok"
    broker.kill()
    assert find_files_with(broker.data, b"the text of the letter") == []


async def test_nkey_user_is_limited_to_mail_subjects(tls_broker: tuple[Broker, BrokerAccess]) -> None:
    broker, access = tls_broker
    client = _Client(access, requires_tls=True)
    violations: set[str] = set()

    async def record_violation(error: Exception) -> None:
        violations.update(re.findall(r"permissions violation for (\w+)", str(error).lower()))

    await client.connect(broker.url, error_cb=record_violation, **access.options())
    try:
        await client.subscribe(">")
        await client.publish("elsewhere", b"x")
        async with time_limit(60, "two permission violations"):
            while violations != {"subscription", "publish"}:
                await asyncio.sleep(0.02)
    finally:
        await client.close()


async def test_documented_local_broker_listens_on_loopback(tmp_path: Path, certificates: Certificates) -> None:
    broker = create_documented_broker("nats-local.conf", tmp_path / "local", certificates)
    assert f'listen: "127.0.0.1:{broker.port}"' in broker.config
    with run_broker(broker):
        assert await can_connect(broker.url, BrokerAccess())


@pytest.mark.parametrize(
    ("extra_config", "valid", "invalid"),
    [
        ('authorization { user: "mail", password: "p4ss" }', {"user": "mail", "password": "p4ss"}, {"user": "mail"}),
        ('authorization { token: "t0ken" }', {"token": "t0ken"}, {"token": "t1ken"}),
    ],
)
async def test_client_connects_with_password_or_token(
    tmp_path: Path, extra_config: str, valid: dict[str, Any], invalid: dict[str, Any]
) -> None:
    broker = Broker(tmp_path / "broker", extra_config=extra_config)
    with run_broker(broker):
        assert await can_connect(broker.url, BrokerAccess(**valid))
        assert not await can_connect(broker.url, BrokerAccess(**invalid))
        assert not await can_connect(broker.url, BrokerAccess())


async def test_client_connects_with_a_credentials_file(tmp_path: Path) -> None:
    operator, stranger = Operator(), Operator()
    files = [tmp_path / "mail.creds", tmp_path / "stranger.creds"]
    for file, signer in zip(files, (operator, stranger), strict=True):
        file.write_text(signer.credentials(*new_nkey()))
    broker = Broker(tmp_path / "broker", extra_config=operator.config())
    with run_broker(broker):
        access = BrokerAccess(credentials=str(files[0]))
        assert await can_connect(broker.url, access)
        assert not await can_connect(broker.url, BrokerAccess(credentials=str(files[1])))
        assert not await can_connect(broker.url, BrokerAccess())
        async with open_mail(tmp_path, "one", broker, access=access) as here:
            await here.send(result("T1", message_id="L1"))
            assert await receive_ids(here, "ARCH", 1) == ["L1"]


async def test_client_rejects_broker_without_required_tls(broker: Broker, certificates: Certificates) -> None:
    assert await can_connect(broker.url, BrokerAccess(user="mail", password="p4ss"))
    assert not await can_connect(broker.url, BrokerAccess(user="mail", password="p4ss", ca=str(certificates.ca)))
    assert not await can_connect(broker.url.replace("nats:", "tls:"), BrokerAccess())


async def test_client_supports_tls_first(tmp_path: Path, certificates: Certificates) -> None:
    files = certificates
    tls = f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", handshake_first: true }}'
    broker = Broker(tmp_path / "broker", extra_config=tls)
    with run_broker(broker):
        assert await can_connect(broker.url, BrokerAccess(ca=str(files.ca), tls_first=True))
        assert not await can_connect(broker.url, BrokerAccess(ca=str(files.ca)))


@pytest.mark.parametrize(
    "file_names",
    [{"nkey": "none.seed"}, {"nkey": "ca.pem"}, {"credentials": "ca.pem"}, {"ca": "none.pem"}, {"cert": "x"}],
)
async def test_unusable_file_is_an_error_at_open(
    tmp_path: Path, certificates: Certificates, file_names: dict[str, str]
) -> None:
    folder = certificates.ca.parent
    files: dict[str, Any] = {name: str(folder / file) for name, file in file_names.items()}
    access = BrokerAccess(**files)
    async with open_store("memory:") as store:
        with pytest.raises(SettingsError) as caught:
            async with Mail(store, transport=NatsTransport("nats://127.0.0.1:4222", access)):
                pass
    assert caught.value.code == "invalid_config"
    assert str(folder) in str(caught.value)


async def test_missing_seed_is_a_failure_until_restored(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)
    file, seed = tmp_path / "mail.seed", new_nkey()[0]
    file.write_text(seed)
    async with open_mail(tmp_path, "one", broker, access=BrokerAccess(nkey=str(file))) as here:
        await wait_for_state(here, "ok")
        file.unlink()
        broker.kill()
        await wait_for_state(here, "failing")
        assert (await here.health())["failing"] == {"connect": "SettingsError"}
        file.write_text(seed)
        broker.start()
        await wait_for_state(here, "ok")
        await here.send(result("T1", message_id="L1"))
        assert await receive_ids(here, "ARCH", 1) == ["L1"]


async def wait_for_state(mail: Mail, state: str) -> None:
    async with time_limit(60, f"mail is {state}"):
        while mail.state != state:
            await asyncio.sleep(0.02)
