"""An attacker with access to the broker and without the mail keys: no letter is lost, and none of theirs is accepted."""

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
from tests.mail.brokers import Broker, free_port, running
from tests.mail.certificates import Certificates, Operator, new_nkey
from tests.mail.conftest import result
from tests.mail.test_encryption import KEY, OTHER, found_in
from tests.mail.test_nats import broker, emptied, opened, received
from tests.mail.timeouts import within

__all__ = ["broker"]

LETTERS = "dragoman.mail._"
RECEIPTS = "dragoman.mail-receipts"


@contextlib.asynccontextmanager
async def attacker(broker: Broker) -> AsyncIterator[Client]:
    """A client of the broker that has everything but the mail keys."""
    client = await nats.connect(broker.url)
    try:
        yield client
    finally:
        await client.close()


async def on_broker(client: Client, count: int) -> Any:
    """A message of the stream, as anybody can read it, once there are so many."""
    async with within(60, "a letter on the broker"):
        while True:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                state = (await client.jetstream().stream_info("DRAGOMAN_MAIL")).state
                if state.messages >= count:
                    return await client.jetstream().get_msg("DRAGOMAN_MAIL", seq=state.first_seq)
            await asyncio.sleep(0.02)


async def dead_with(mail: Mail, reasons: list[str]) -> None:
    """Wait until there are dead letters for these reasons."""
    async with within(60, f"dead letters: {reasons}"):
        while sorted(dead.reason for dead in await mail.dead_letters()) != sorted(reasons):
            await asyncio.sleep(0.02)


async def test_forged_receipt_does_not_change_the_outbox(
    tmp_path: Path, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    key = ("ARCH", "", "L1")
    data = msgspec.json.encode([key])
    async with opened(tmp_path, "one", broker) as here, attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        letter = await on_broker(client, 1)
        subject = f"{RECEIPTS}.{await here.store.mail.origin()}"
        other = MessageCodec(Encryptor.from_text(f"a:{OTHER}"), here.store.clock)
        own = MessageCodec(here.encryptor, here.store.clock)
        forged = [
            ({}, data),  # not signed at all
            other.encode("receipt", subject, data),  # with a key of the same name
            own.encode("receipt", f"{RECEIPTS}.another", data),  # a real one, of another store
            own.encode("letter", subject, data),  # a real message, and no receipt
            (letter.headers, letter.data),
            (letter.headers, data),
        ]
        for headers, body in forged:
            await client.publish(subject, body, headers=headers)
        await client.flush()
        async with within(60, "six refusals"):
            while caplog.text.count("a receipt was rejected") < len(forged):
                await asyncio.sleep(0.02)
        assert [box.away for box in await here.counts()] == [1]
        async with opened(tmp_path, "two", broker) as there:
            assert await received(there, "ARCH", 1) == ["L1"]
            await emptied(here)


async def test_forged_letters_are_dead_letters_and_genuine_ones_arrive(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        real = await on_broker(client, 1)
        forged = to_transport(to_stored(result("T9", message_id="FORGED"), here.encryptor))
        other = MessageCodec(Encryptor.from_text(f"a:{OTHER}"), here.store.clock)
        unknown = MessageCodec(Encryptor.from_text(f"z:{OTHER}"), here.store.clock)
        changed = bytes([*real.data[:-1], real.data[-1] ^ 1])
        moved = {name: value for name, value in real.headers.items() if name != MESSAGE_ID}
        attempts: list[Any] = [
            (f"{LETTERS}.ARCH", forged, {ORIGIN: real.headers[ORIGIN]}),
            (f"{LETTERS}.ARCH", *reversed(other.encode("letter", f"{LETTERS}.ARCH", forged, {MESSAGE_ID: "x1"}))),
            (f"{LETTERS}.ARCH", *reversed(unknown.encode("letter", f"{LETTERS}.ARCH", forged, {MESSAGE_ID: "x2"}))),
            (f"{LETTERS}.ARCH", changed, {**moved, MESSAGE_ID: "x3"}),
            (f"{LETTERS}.CA", real.data, moved),
            (f"dragoman.mail.{b'ops'.hex()}.ARCH", real.data, moved),
        ]
        for subject, body, headers in attempts:
            await client.jetstream().publish(subject, body, headers=headers)
        async with opened(tmp_path, "two", broker) as there:
            assert await received(there, "ARCH", 1) == ["L1"]
            await there.receive("CA")
            team = there.for_team(team_id="ops")
            await team.receive("ARCH")
            at_arch = ["unsigned_letter", "forged_letter", "unknown_mail_key", "forged_letter"]
            await dead_with(there, [*at_arch, "forged_letter"])
            await dead_with(team, ["forged_letter"])
            await emptied(here)
            assert [one.letter.letter_id for one in await there.letters()] == ["L1"]
            assert await team.letters() == []
            assert there.state == "ok"


async def test_replayed_letter_changes_nothing(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        real = await on_broker(client, 1)
        async with opened(tmp_path, "two", broker) as there:
            assert await received(there, "ARCH", 1) == ["L1"]
            await emptied(here)
            await here.send(result("T2", message_id="L2"))
            for _ in range(3):  # NATS itself drops what has the same id, so it comes by another way, too
                await client.publish(f"{LETTERS}.ARCH", real.data, headers=real.headers)
            assert await received(there, "ARCH", 1) == ["L2"]
            assert sorted(one.letter.letter_id for one in await there.letters()) == ["L1", "L2"]
            assert await there.receive("ARCH") == []
            assert await there.dead_letters() == []


async def test_repeated_forgery_is_one_dead_letter_without_a_notice(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker, keys=f"z:{OTHER}", resend_s=0.2) as here:
        await here.send(result("T1", message_id="L1"))
        async with opened(tmp_path, "two", broker) as there:
            await there.receive("ARCH")
            await dead_with(there, ["unknown_mail_key"])
            async with attacker(broker) as client, within(60, "the letter is sent again"):
                stream = client.jetstream()
                last = (await stream.stream_info("DRAGOMAN_MAIL")).state.last_seq
                while (await stream.stream_info("DRAGOMAN_MAIL")).state.last_seq < last + 2:
                    await asyncio.sleep(0.05)
            await dead_with(there, ["unknown_mail_key"])
            assert await there.letters() == []
        assert [box.away for box in await here.counts()] == [1]


async def test_signed_letter_for_another_team_than_its_subject_is_rejected(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker) as here, attacker(broker) as client:
        wire = MessageCodec(here.encryptor, here.store.clock)
        await here.receive("ARCH")
        await on_broker_stream(client)
        for number, posted in enumerate(
            (
                to_stored(result("T1", message_id="L1"), here.encryptor, team_id="ops"),
                to_stored(result("T2", to="CA", message_id="L2"), here.encryptor),
            )
        ):
            named = {MESSAGE_ID: f"m{number}"}
            headers, data = wire.encode("letter", f"{LETTERS}.ARCH", to_transport(posted), named)
            await client.jetstream().publish(f"{LETTERS}.ARCH", data, headers=headers)
        await dead_with(here, ["wrong_mailbox"] * 2)
        assert await here.for_team(team_id="ops").letters() == []


async def on_broker_stream(client: Client) -> None:
    async with within(60, "the stream"):
        while True:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await client.jetstream().stream_info("DRAGOMAN_MAIL")
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("sign_only", [False, True])
async def test_broker_can_read_letters_only_with_sign_only(tmp_path: Path, broker: Broker, sign_only: bool) -> None:
    async with opened(tmp_path, "one", broker, sign_only=sign_only) as here, attacker(broker) as client:
        await here.send(result("T1", message_id="L1", output="the words of the letter"))
        real = await on_broker(client, 1)
        assert (b"the words of the letter" in real.data) is sign_only
        async with opened(tmp_path, "two", broker) as there:  # which reads both
            assert await received(there, "ARCH", 1) == ["L1"]


# --- keys ------------------------------------------------------------------------------------------------------------

OLD, NEW = f"old:{KEY}", f"new:{OTHER}"


async def test_keys_can_be_rotated_while_letters_are_in_transit(tmp_path: Path, broker: Broker) -> None:
    steps = [(OLD, OLD), (f"{OLD},{NEW}", OLD), (f"{OLD},{NEW}", f"{OLD},{NEW}"), (f"{NEW},{OLD}", f"{OLD},{NEW}")]
    steps += [(f"{NEW},{OLD}", f"{NEW},{OLD}"), (NEW, f"{NEW},{OLD}"), (NEW, NEW)]
    sent = 0
    for mine, theirs in steps:
        async with opened(tmp_path, "one", broker, keys=mine, resend_s=0.2) as here:
            await here.send(result(f"T{sent}", message_id=f"L{sent}"))  # which the next step may have to deliver
            sent += 1
            async with opened(tmp_path, "two", broker, keys=theirs) as there:
                assert await received(there, "ARCH", 1) == [f"L{sent - 1}"]
                await emptied(here)
                assert await there.dead_letters() == []


async def test_letter_signed_with_a_removed_key_is_resent_with_the_new_key(tmp_path: Path, broker: Broker) -> None:
    async with opened(tmp_path, "one", broker, keys=OLD) as here, attacker(broker) as client:
        await here.send(result("T1", message_id="L1"))
        await on_broker(client, 1)
    async with opened(tmp_path, "two", broker, keys=NEW) as there:
        await there.receive("ARCH")
        await dead_with(there, ["unknown_mail_key"])
        async with opened(tmp_path, "one", broker, keys=NEW) as here:
            assert await received(there, "ARCH", 1) == ["L1"]
            await emptied(here)


async def test_remote_broker_requires_mail_keys(tmp_path: Path) -> None:
    for server in ("nats://broker:4222", "tls://user:hidden@10.0.0.1:4222", "broker"):
        async with open_store(f"sqlite:///{tmp_path / 'one.db'}") as store:
            with pytest.raises(SettingsError) as caught:
                async with Mail(store, transport=NatsTransport(["nats://127.0.0.1:4222", server])):
                    pass
        assert caught.value.code == "missing_mail_keys"
        assert "hidden" not in str(caught.value)


# --- who may connect -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def documented(title: str, folder: Path, files: Certificates, nkey: str = "") -> Broker:
    """A broker with the configuration of the documentation; its ports, files and nkey are those of the test."""
    page = (ROOT / "docs" / "mail-delivery.md").read_text()
    found = re.search(rf'```text title="{title}"\n(.*?)```', page, re.DOTALL)
    assert found is not None
    made = Broker(folder)
    route = free_port()
    config = found[1].replace("/var/lib/nats", str(made.data)).replace("8222", str(made.monitor_port))
    for name, file in (("broker.pem", files.cert), ("broker-key.pem", files.key), ("ca.pem", files.ca)):
        config = config.replace(f"/etc/nats/{name}", str(file))
    config = re.sub(r'nkey: "\w+"', f'nkey: "{nkey}"', config)
    config = config.replace("0.0.0.0", "127.0.0.1").replace(":4222", f":{made.port}").replace(":6222", f":{route}")
    config = re.sub(r"broker-[23]:\d+", lambda _: f"127.0.0.1:{free_port()}", config)
    made.config = config.replace(f"broker-1:{route}", f"127.0.0.1:{route}")
    made.url = f"tls://127.0.0.1:{made.port}" if "tls" in config else made.url
    return made


@pytest.fixture
def guarded(tmp_path: Path, certificates: Certificates) -> Iterator[tuple[Broker, BrokerAccess]]:
    """The first of the three brokers of the documentation, and the access of who may use it."""
    seed, public = new_nkey()
    file = tmp_path / "mail.seed"
    file.write_text(f"{seed}\n")
    made = documented("nats.conf", tmp_path / "guarded", certificates, public)
    made.config = re.sub(r"cluster \{.*\n\}\n", "", made.config, flags=re.DOTALL)  # alone, it would wait for the others
    ca, cert, key = map(str, (certificates.ca, certificates.cert, certificates.key))
    with running(made):
        yield made, BrokerAccess(nkey=str(file), ca=ca, cert=cert, key=key)


async def connects(server: str, access: BrokerAccess) -> bool:
    """Whether a server lets in who has this."""
    client = _Client(access, requires_tls=server.startswith("tls"))
    try:
        await client.connect(server, allow_reconnect=False, connect_timeout=5, error_cb=_quiet, **access.options())
    except (nats.errors.Error, OSError):
        return False
    finally:
        with contextlib.suppress(TimeoutError):  # the client waits for ever after a handshake that failed
            async with asyncio.timeout(0.5):
                await client.close()
    return True


async def _quiet(_: Exception) -> None: ...


async def test_documented_brokers_accept_only_the_nkey(tmp_path: Path, guarded: tuple[Broker, BrokerAccess]) -> None:
    broker, access = guarded
    stranger = tmp_path / "stranger.seed"
    stranger.write_text(new_nkey()[0])
    assert await connects(broker.url, access)
    for other in (
        msgspec.structs.replace(access, nkey=None),
        msgspec.structs.replace(access, nkey=str(stranger)),
        msgspec.structs.replace(access, nkey=None, user="root", password="root"),
        msgspec.structs.replace(access, nkey=None, token="root"),
        msgspec.structs.replace(access, cert=None, key=None),
        msgspec.structs.replace(access, ca=None),
    ):
        assert not await connects(broker.url, other)


async def test_documented_brokers_deliver_letters(tmp_path: Path, guarded: tuple[Broker, BrokerAccess]) -> None:
    broker, access = guarded
    async with (
        opened(tmp_path, "one", broker, access=access) as here,
        opened(tmp_path, "two", broker, access=access) as there,
    ):
        await here.send(result("T1", message_id="L1", output="the words of the letter"))
        assert await received(there, "ARCH", 1) == ["L1"]
        await emptied(here)
        assert (await here.health())["is_signed"] is True
        assert here.state == there.state == "ok"
    broker.kill()
    assert found_in(broker.data, b"the words of the letter") == []


async def test_nkey_user_is_limited_to_mail_subjects(guarded: tuple[Broker, BrokerAccess]) -> None:
    broker, access = guarded
    client = _Client(access, requires_tls=True)
    refused: set[str] = set()

    async def note(error: Exception) -> None:
        refused.update(re.findall(r"permissions violation for (\w+)", str(error).lower()))

    await client.connect(broker.url, error_cb=note, **access.options())
    try:
        await client.subscribe(">")
        await client.publish("elsewhere", b"x")
        async with within(60, "both are refused"):
            while refused != {"subscription", "publish"}:
                await asyncio.sleep(0.02)
    finally:
        await client.close()


async def test_documented_local_broker_listens_on_loopback(tmp_path: Path, certificates: Certificates) -> None:
    broker = documented("nats-local.conf", tmp_path / "local", certificates)
    assert f'listen: "127.0.0.1:{broker.port}"' in broker.config
    with running(broker):
        assert await connects(broker.url, BrokerAccess())


@pytest.mark.parametrize(
    ("more", "right", "wrong"),
    [
        ('authorization { user: "mail", password: "p4ss" }', {"user": "mail", "password": "p4ss"}, {"user": "mail"}),
        ('authorization { token: "t0ken" }', {"token": "t0ken"}, {"token": "t1ken"}),
    ],
)
async def test_client_connects_with_password_or_token(
    tmp_path: Path, more: str, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    broker = Broker(tmp_path / "broker", more=more)
    with running(broker):
        assert await connects(broker.url, BrokerAccess(**right))
        assert not await connects(broker.url, BrokerAccess(**wrong))
        assert not await connects(broker.url, BrokerAccess())


async def test_client_connects_with_a_credentials_file(tmp_path: Path) -> None:
    operator, stranger = Operator(), Operator()
    files = [tmp_path / "mail.creds", tmp_path / "stranger.creds"]
    for file, signer in zip(files, (operator, stranger), strict=True):
        file.write_text(signer.credentials(*new_nkey()))
    broker = Broker(tmp_path / "broker", more=operator.config())
    with running(broker):
        access = BrokerAccess(credentials=str(files[0]))
        assert await connects(broker.url, access)
        assert not await connects(broker.url, BrokerAccess(credentials=str(files[1])))
        assert not await connects(broker.url, BrokerAccess())
        async with opened(tmp_path, "one", broker, access=access) as here:
            await here.send(result("T1", message_id="L1"))
            assert await received(here, "ARCH", 1) == ["L1"]


async def test_client_sends_nothing_to_a_broker_without_required_tls(
    broker: Broker, certificates: Certificates
) -> None:
    assert await connects(broker.url, BrokerAccess(user="mail", password="p4ss"))
    assert not await connects(broker.url, BrokerAccess(user="mail", password="p4ss", ca=str(certificates.ca)))
    assert not await connects(broker.url.replace("nats:", "tls:"), BrokerAccess())


async def test_client_supports_tls_first(tmp_path: Path, certificates: Certificates) -> None:
    files = certificates
    tls = f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", handshake_first: true }}'
    broker = Broker(tmp_path / "broker", more=tls)
    with running(broker):
        assert await connects(broker.url, BrokerAccess(ca=str(files.ca), tls_first=True))
        assert not await connects(broker.url, BrokerAccess(ca=str(files.ca)))


@pytest.mark.parametrize(
    "given", [{"nkey": "none.seed"}, {"nkey": "ca.pem"}, {"credentials": "ca.pem"}, {"ca": "none.pem"}, {"cert": "x"}]
)
async def test_unusable_file_is_an_error_at_open(
    tmp_path: Path, certificates: Certificates, given: dict[str, str]
) -> None:
    folder = certificates.ca.parent
    files: dict[str, Any] = {name: str(folder / file) for name, file in given.items()}
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
    async with opened(tmp_path, "one", broker, access=BrokerAccess(nkey=str(file))) as here:
        await in_state(here, "ok")
        file.unlink()
        broker.kill()
        await in_state(here, "failing")
        assert (await here.health())["failing"] == {"connect": "SettingsError"}
        file.write_text(seed)
        broker.start()
        await in_state(here, "ok")
        await here.send(result("T1", message_id="L1"))
        assert await received(here, "ARCH", 1) == ["L1"]


async def in_state(mail: Mail, state: str) -> None:
    async with within(60, f"mail is {state}"):
        while mail.state != state:
            await asyncio.sleep(0.02)
