"""Sites and server without a network between them: the bits of one process, and every fault survived."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.command import fedgloss
from federation.sites import LOCAL, SITES, Courier, learning, problem, site_data

from fedgloss import FedGloSS, InvalidInput, Sam, train
from fedgloss.algorithm import Aggregate, Dropped
from fedgloss.algorithms import METHODS, build
from fedgloss.checkpoint import Checkpoints
from fedgloss.codec import decode, encode
from fedgloss.environment import code_fingerprint
from fedgloss.federation import Learning, Privacy, Reply, Rules, SiteMemory, TooFewSites, serve
from fedgloss.federation.privacy import Noised
from fedgloss.messages import Broadcast, ClientState, ServerState, Update
from fedgloss.records import RunFolder, read_json, read_lines
from fedgloss.sampling import ExactCohort, IndependentCohort

FEDGLOSS = FedGloSS(0.05, 5.0, LOCAL, Sam(0.05))


def final(folder: RunFolder) -> ServerState:
    checkpoints = Checkpoints(folder)
    return checkpoints.state(max(checkpoints.rounds()))


def equal(one: ServerState, other: ServerState) -> bool:
    return one.vectors.keys() == other.vectors.keys() and all(one[n].equal(other[n]) for n in one.vectors)


@pytest.mark.parametrize("name", [n for n in METHODS if not METHODS[n].centralised and n not in ("swa", "wima")])
def test_sites_give_the_bits_of_one_process(name: str, tmp_path: Path) -> None:
    chosen = learning(name)
    folder = RunFolder(tmp_path / "run")
    summary = serve(chosen, Courier(chosen, tmp_path), folder)
    alone = train(chosen.algorithm, problem(), rounds=3, cohort=SITES, eval_every=1)
    assert equal(final(folder), alone.state)
    assert summary["status"] == "finished"
    assert summary["last_evaluation"]["metrics"] == dict(alone.evaluations[-1].metrics)
    assert (folder.path / "model.safetensors").exists()


# Memory


def test_memory_is_never_ahead_of_the_server(tmp_path: Path) -> None:
    run = "0" * 32
    memory = SiteMemory(tmp_path, run, size=2)
    with memory.locked():
        assert memory.settle(-1, 0) is None
        memory.keep(0, ClientState({"dual": torch.tensor([1.0, 0.0])}))
        memory.keep(1, ClientState({"dual": torch.tensor([2.0, 0.0])}))
        again = SiteMemory(tmp_path, run, size=2)  # after a crash
        kept = again.settle(0, 2)  # the update of round 1 was never used
        assert kept is not None
        assert kept["dual"].tolist() == [1.0, 0.0]
        assert again.versions() == [0]
        again.keep(2, ClientState({"dual": torch.tensor([3.0, 0.0])}))
        with pytest.raises(InvalidInput, match="of round 1, but this site has worked on round 2 already"):
            again.settle(0, 1)  # a letter that was long on its way
        assert again.versions() == [0, 2]
        with pytest.raises(InvalidInput, match="used this site's update of round 1, but its memory of it is gone"):
            again.settle(1, 3)
        assert again.versions() == [0, 2]


@pytest.mark.parametrize("run", ["", "../" + "0" * 29, "0" * 31, "G" * 32])
def test_a_run_s_name_cannot_lead_out_of_the_folder(run: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not name a run"):
        SiteMemory(tmp_path, run, size=2)


def sigma_law(folder: RunFolder, courier: Courier) -> float:
    """How far the server's dual is from the mean of the sites' duals, relatively."""
    state, run = final(folder), read_json(folder.path / "identity.json")["run"]
    versions = Checkpoints(folder).versions(state.round)
    duals = [courier.memory(site, run, version)["dual"].double() for site, version in versions.items()]
    mean = torch.stack(duals).sum(0) / SITES
    return float((state["dual"].double() - mean).norm() / mean.norm())


def test_sigma_stays_the_mean_of_the_sites_when_replies_are_lost(tmp_path: Path) -> None:
    """A site that trained, saved and answered, but whose answer was lost, takes its dual back."""
    chosen = learning(FEDGLOSS, rounds=6)
    lost = {(1, 0), (2, 0), (3, 2)}

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> Sequence[Reply] | None:
        return [] if (honest["round"], site) in lost else None

    folder, courier = RunFolder(tmp_path / "run"), Courier(chosen, tmp_path, fault)
    serve(chosen, courier, folder)
    rounds = read_lines(folder.rounds, "round")
    assert [list(line.get("dropped", {})) for line in rounds] == [[], ["0"], ["0"], ["2"], [], []]
    assert rounds[1]["dropped"]["0"] == "did not answer in time"
    assert [(i["round"], i["site"]) for i in read_lines(folder.path / "incidents.jsonl")] == sorted(lost)
    assert sigma_law(folder, courier) < 1e-5


def test_the_round_without_a_site_is_that_of_the_others(tmp_path: Path) -> None:
    chosen = learning(FEDGLOSS, rounds=1)
    folder = RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path, lambda site, *_: [] if site == 1 else None), folder)
    other = learning(FEDGLOSS, rounds=1)
    state = other.algorithm.init_server(other.objective().initial(), SITES)
    from fedgloss.algorithm import run_round
    from fedgloss.tasks import Objective, client_tasks
    from fedgloss.transports import MemoryStore, SerialTransport

    task = problem()
    objective = Objective(task.build(0), task.loss)
    transport = SerialTransport(FEDGLOSS, client_tasks(objective, task.federation, 0), MemoryStore())
    cohort = [site for site in ExactCohort(SITES).cohort(SITES, 0, 0) if site != 1]
    assert equal(final(folder), run_round(FEDGLOSS, state, cohort, transport))


# Faults


def broken(honest: dict[str, Any], **changes: Any) -> Update:
    return replace(decode(Update, honest["update"]), **changes)


def with_value(honest: dict[str, Any], value: float) -> bytes:
    update = decode(Update, honest["update"])
    delta = update["delta"].clone()
    delta[7] = value
    return encode(replace(update, vectors={"delta": delta}))


def with_infinite_size(update: bytes) -> bytes:
    """The size as a float, in as many bytes: what is eight bytes of I64 is eight of F64."""
    changed = update.replace(b'"dtype":"I64"', b'"dtype":"F64"')
    at = changed.rindex(struct.pack("<q", decode(Update, update).size))
    return changed[:at] + struct.pack("<d", float("inf")) + changed[at + 8 :]


def brackets(length: int) -> bytes:
    return struct.pack("<Q", length - 8) + b"[" * (length - 8)


FAULTS = {
    "a NaN": (lambda h: h | {"update": with_value(h, float("nan"))}, "sent a delta that is not finite"),
    "an infinity": (lambda h: h | {"update": with_value(h, float("inf"))}, "sent a delta that is not finite"),
    "a huge norm": (lambda h: h | {"update": with_value(h, 1e9)}, "sent a delta of norm 1e+09, above 1e+06"),
    "the wrong shape": (
        lambda h: h | {"update": encode(broken(h, vectors={"delta": torch.zeros(5)}))},
        "bytes where an update has",
    ),
    "another name": (
        lambda h: h | {"update": encode(broken(h, vectors={"dalta": decode(Update, h["update"])["delta"]}))},
        "sent ['dalta'], asked was ['delta']",
    ),
    "another type": (
        lambda h: h | {"update": encode(broken(h, vectors={"delta": torch.zeros(605, dtype=torch.float64)}))},
        "where an update has",
    ),
    "an old round": (lambda h: h | {"round": h["round"] - 1}, "answered round 0 ('train'), asked was 1 (train)"),
    "another purpose": (lambda h: h | {"purpose": "probe"}, "answered round 1 ('probe')"),
    "no samples": (lambda h: h | {"update": encode(broken(h, size=0))}, "says that it has 0 samples"),
    "a loss that is not finite": (
        lambda h: h | {"update": encode(broken(h, scalars={n: float("nan") for n in broken(h).scalars}))},
        "that is not finite",
    ),
    "a loss beyond all bounds": (
        lambda h: h | {"update": encode(broken(h, scalars=dict.fromkeys(broken(h).scalars, 1e308)))},
        "sent a steps of 1e+308",
    ),
    "a number of samples that is infinite": (
        lambda h: h | {"update": with_infinite_size(h["update"])},
        "message: not a well-formed Update",
    ),
    "brackets without end": (
        lambda h: h | {"update": brackets(len(h["update"]))},
        "message: not a safetensors message",
    ),
    "garbage": (lambda h: h | {"update": b"\xff" * len(h["update"])}, "message: not a safetensors message"),
    "a bomb": (lambda h: h | {"update": b"\x00" * 10**7}, "sent 10000000 bytes where an update has"),
    "text": (lambda h: h | {"update": "zeros"}, "sent no bytes where an update has"),
    "nothing": (lambda h: {}, "answered round None"),
    "escapes for the operator's terminal": (
        lambda h: {"refused": "\x1b[2J\nround 9: all is well"},
        "refused:  [2J round 9: all is well",
    ),
    "a reason without end": (lambda h: {"round": "x" * 10**6}, "answered round 'xxx"),
    "a refusal": (lambda h: {"refused": "out of memory"}, "refused: out of memory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_reply_is_refused_and_named_and_the_round_goes_on(name: str, tmp_path: Path) -> None:
    spoil, reason = FAULTS[name]
    chosen = learning(FEDGLOSS, rounds=3)

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> Sequence[Reply] | None:
        return [Reply(site, spoil(honest))] if site == 2 and honest["round"] == 1 else None

    folder, courier = RunFolder(tmp_path / "run"), Courier(chosen, tmp_path, fault)
    summary = serve(chosen, courier, folder)
    assert summary["status"] == "finished"
    dropped = [line.get("dropped", {}) for line in read_lines(folder.rounds, "round")]
    assert [list(names) for names in dropped] == [[], ["2"], []]
    assert reason in dropped[1]["2"]
    assert len(dropped[1]["2"]) <= 500
    assert sigma_law(folder, courier) < 1e-5  # what was refused left no trace at the site


def test_a_second_reply_is_ignored_and_named(tmp_path: Path) -> None:
    chosen = learning(FEDGLOSS)
    honest_folder, folder = RunFolder(tmp_path / "honest"), RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path / "a"), honest_folder)

    def twice(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> Sequence[Reply] | None:
        other = honest | {"update": with_value(honest, 1.0)}
        return [Reply(site, honest), Reply(site, other)] if site == 0 else None

    serve(chosen, Courier(chosen, tmp_path / "b", twice), folder)
    assert equal(final(folder), final(honest_folder))
    incidents = read_lines(folder.path / "incidents.jsonl")
    assert [i["what"] for i in incidents] == ["replied twice; the first reply counts"] * 3


def test_too_few_sites_and_the_round_is_done_again_to_the_same_bits(tmp_path: Path) -> None:
    chosen = learning("naive-fedgloss", rounds=3)
    honest_folder, folder = RunFolder(tmp_path / "honest"), RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path / "a"), honest_folder)
    failures = iter([True, True])

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> Sequence[Reply] | None:
        late = honest["round"] == 1 and honest["purpose"] == "train" and site == 2 and next(failures, False)
        return [Reply(site, error="failed")] if late else None

    serve(chosen, Courier(chosen, tmp_path / "b", fault), folder, Rules(minimum=3))
    assert equal(final(folder), final(honest_folder))
    assert len(read_lines(folder.path / "incidents.jsonl")) == 2
    always = Courier(chosen, tmp_path / "c", lambda site, *_: [] if site == 1 else None)
    with pytest.raises(
        TooFewSites, match=r"round 0: 2 of 3 sites answered, at least 3 are needed \(site 1 did not"
    ):
        serve(chosen, always, RunFolder(tmp_path / "never"), Rules(minimum=3))


# A server that dies


class PowerCut(BaseException):
    """Ends the server where it stands."""


@pytest.mark.parametrize("name", ["fedgloss", "naive-fedgloss", "scaffold"])
@pytest.mark.parametrize("cut", [2, 4, 7])
def test_a_server_that_died_goes_on_to_the_same_bits(name: str, cut: int, tmp_path: Path) -> None:
    chosen = learning(name, rounds=4)
    whole, folder = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path / "a"), whole)
    answers = iter(range(100))

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> None:
        if next(answers) == cut:
            raise PowerCut

    with pytest.raises(PowerCut):
        serve(chosen, Courier(chosen, tmp_path / "b", fault), folder)
    serve(chosen, Courier(chosen, tmp_path / "b"), folder)
    assert equal(final(folder), final(whole))
    assert folder.rounds.read_bytes() == whole.rounds.read_bytes()


def test_sites_are_told_only_after_the_state_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = learning("fedgloss", rounds=3)
    folder, courier = RunFolder(tmp_path / "run"), Courier(chosen, tmp_path)
    save = Checkpoints.save

    def cut(self: Checkpoints, state: ServerState, *args: Any, **options: Any) -> None:
        if state.round == 2:
            raise PowerCut
        save(self, state, *args, **options)

    monkeypatch.setattr(Checkpoints, "save", cut)
    with pytest.raises(PowerCut):
        serve(chosen, courier, folder)
    assert {letter["taken"] for letter in courier.letters} == {-1, 0}
    monkeypatch.undo()
    serve(chosen, courier, folder)
    assert {letter["taken"] for letter in courier.letters[-3:]} == {1}
    alone = train(chosen.algorithm, problem(), rounds=3, cohort=SITES, eval_every=1)
    assert equal(final(folder), alone.state)


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    one = learning("fedgloss", rounds=1, config="[local]\nlr = 0.1\n")
    serve(one, Courier(one, tmp_path), folder)
    other = learning("fedgloss", rounds=1, config="[local]\nlr = 0.2\n")
    with pytest.raises(InvalidInput, match=r"holds a run with another configuration \(local\.lr: 0\.1 -> 0\.2\)"):
        serve(other, Courier(other, tmp_path), folder)


# What a site refuses


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"run": 3}, "not a letter of a fedgloss server"),
        ({"broadcast": b"\x00" * 10**6}, "1000000 bytes are more than any broadcast for this network"),
        ({"broadcast": b"\x80\x04K\x01."}, "message: not a safetensors message"),
        ({"site": 1}, "is for site 1, this is site 0"),
        ({"code": "0" * 12}, f"the server's fedgloss has the code {'0' * 12}, this site's {code_fingerprint()}"),
        ({"taken": 5}, "memory of it is gone"),
    ],
)
def test_a_site_refuses_what_is_no_letter(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    from fedgloss.federation import answer

    chosen = learning("fedgloss")
    broadcast = encode(Broadcast({"params": chosen.objective().initial()}, 0))
    letter = {"run": "0" * 32, "code": code_fingerprint(), "site": 0, "taken": -1, "broadcast": broadcast}
    assert "update" in answer(chosen, {"partition-id": 0}, tmp_path, letter)
    refusal = answer(chosen, {"partition-id": 0}, tmp_path, letter | change)
    assert reason in refusal["refused"]
    assert json.dumps(refusal)


def boxed(node_config: Mapping[str, Any]) -> Any:
    return list(site_data(node_config))


RUBBISH: dict[str, tuple[Any, str]] = {
    "nothing": (None, "must return inputs and targets, got NoneType"),
    "three things": ((1, 2, 3), "must return inputs and targets, got 3 things"),
    "no samples": ((torch.zeros(0, 8, 8), torch.zeros(0).long()), "client 0 has no data"),
    "a NaN": ((torch.full((4, 8, 8), torch.nan), torch.zeros(4).long()), "sample 0 holds a NaN or infinity"),
    "another shape": ((torch.zeros(4, 5), torch.zeros(4).long()), "cannot be trained on a batch of inputs (2, 5)"),
    "another type": ((torch.zeros(4, 8, 8).double(), torch.zeros(4).long()), "must have the same dtype"),
    "a class too many": (
        (torch.zeros(4, 8, 8), torch.tensor([0, 1, 2, 10])),
        "but the training data has the class 10",
    ),
    "words": ((torch.zeros(4, 8, 8), ["a", "b", "c", "d"]), "can't convert"),
}


@pytest.mark.parametrize("name", RUBBISH)
def test_data_that_cannot_be_learnt_from_are_named_before_anything_is_trained(name: str, tmp_path: Path) -> None:
    given, reason = RUBBISH[name]
    chosen = learning(FEDGLOSS, rounds=2)
    at_the_server = replace(chosen, test_data=lambda: given)
    courier = Courier(at_the_server, tmp_path)
    with pytest.raises(InvalidInput, match=f"^test_data: .*{re.escape(reason)}"):
        serve(at_the_server, courier, RunFolder(tmp_path / "server"))
    assert not courier.letters
    at_a_site = replace(chosen, client_data=lambda config: given if config["partition-id"] == 1 else boxed(config))
    folder = RunFolder(tmp_path / "run")
    serve(at_a_site, Courier(at_a_site, tmp_path), folder)
    for line in read_lines(folder.rounds, "round"):
        assert line["dropped"].keys() == {"1"}
        assert line["dropped"]["1"].startswith("refused: InvalidInput: client_data: ")
        assert reason in line["dropped"]["1"]


# What others read


def test_a_federation_s_run_is_summed_up_as_any_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = learning("fedgloss", rounds=20)
    summary = serve(chosen, Courier(chosen, tmp_path), RunFolder(tmp_path / "runs/one"))
    alone = train(chosen.algorithm, problem(), rounds=20, cohort=SITES, eval_every=1)
    assert summary["reported"]["accuracy"] == alone.reported()  # over the last two rounds
    assert len(read_lines(tmp_path / "runs/one/timings.jsonl")) == 20
    (shown,) = json.loads(fedgloss(capsys, "runs", tmp_path / "runs", "--json").out)
    assert (shown["state"], shown["rounds"], shown["accuracy"]) == ("finished", "20/20", alone.reported())


def test_records_do_not_give_away_what_flower_started_the_server_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command line has the token of the running app, and records are shown around."""
    monkeypatch.setattr("sys.argv", ["flwr-serverapp", "--token", "secret"])
    chosen, folder = learning("fedgloss", rounds=1), RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path), folder)
    assert read_json(folder.environment)["command"] == []
    assert not any(b"secret" in path.read_bytes() for path in folder.path.rglob("*") if path.is_file())


def test_a_run_may_be_made_longer_but_not_shorter(tmp_path: Path) -> None:
    def planned(rounds: int) -> Learning:
        return learning("fedgloss", rounds=rounds, config=f"[training]\nrounds = {rounds}\n")

    folder = RunFolder(tmp_path / "run")
    serve(planned(1), Courier(planned(1), tmp_path), folder)
    assert serve(planned(3), Courier(planned(3), tmp_path), folder)["planned_rounds"] == 3
    assert folder.config.read_text() == planned(3).config
    with pytest.raises(InvalidInput, match=r"training\.rounds: 2 asked for, but the run has done 3 already"):
        serve(planned(2), Courier(planned(2), tmp_path), folder)
    assert folder.config.read_text() == planned(3).config


def test_an_end_whose_last_rounds_passed_unevaluated_is_refused(tmp_path: Path) -> None:
    def planned(rounds: int) -> Learning:
        chosen = learning("fedgloss", rounds=rounds)
        return replace(chosen, plan=replace(chosen.plan, eval_every=100, window=2 if rounds == 5 else 1))

    asked: list[int] = []

    def silent_after_two_rounds(site: int, *_: object) -> list[Reply] | None:
        asked.append(site)
        return [] if len(asked) > 2 * SITES else None

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(TooFewSites):
        serve(planned(5), Courier(planned(5), tmp_path, silent_after_two_rounds), folder, attempts=1)
    with pytest.raises(InvalidInput, match="has gone past round 2 without an evaluation; ask for more rounds"):
        serve(planned(2), Courier(planned(2), tmp_path), folder)


def test_a_run_that_goes_on_has_no_former_summary(tmp_path: Path) -> None:
    folder, courier = RunFolder(tmp_path / "run"), Courier(learning("fedgloss", rounds=2), tmp_path)
    serve(learning("fedgloss", rounds=1), courier, folder)
    there: list[bool] = []

    def look(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> None:
        there.append(folder.summary.exists())

    courier.fault = look
    serve(learning("fedgloss", rounds=2), courier, folder)
    assert there == [False] * SITES
    assert folder.summary.exists()


# Privacy


PRIVACY = Privacy(clip=0.5, noise=1.1)


def private(
    name: str = "fedgloss", probability: float = 0.6, privacy: Privacy = PRIVACY, **options: Any
) -> Learning:
    algorithm = build(name, privacy.clipped(LOCAL))
    return learning(algorithm, sampling=IndependentCohort(probability), privacy=privacy, **options)


def epsilons(folder: RunFolder) -> list[float]:
    return [line["epsilon"] for line in read_lines(folder.path / "privacy.jsonl")]


@pytest.mark.integration  # needs the accountant of the extra
def test_privacy_clips_what_is_sent_and_what_is_kept_and_accounts_for_the_noise(tmp_path: Path) -> None:
    chosen = private(rounds=4, probability=0.99)
    norms: list[float] = []

    def look(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> None:
        update = decode(Update, honest["update"])
        norms.append(float(update["delta"].norm()))
        assert update.size == 1
        assert set(update.scalars.values()) == {0.0}

    folder, courier = RunFolder(tmp_path / "run"), Courier(chosen, tmp_path, look)
    serve(chosen, courier, folder)
    assert max(norms) == pytest.approx(0.5, rel=1e-5)
    assert epsilons(folder) == [PRIVACY.spent(0.99, [1] * done) for done in (1, 2, 3, 4)]
    assert sorted(epsilons(folder)) == epsilons(folder)
    # a published point: q = 0.01, noise 4, 10,000 steps, delta 1e-5 is epsilon 1.26 (Abadi et al. 2016)
    assert Privacy(clip=1.0, noise=4.0).spent(0.01, [1] * 10_000) == pytest.approx(1.26, abs=0.25)
    assert sigma_law(folder, courier) > 0.1  # the noise is the server's alone, by design


@pytest.mark.integration
def test_sums_of_one_draw_are_protected_by_sampling_once() -> None:
    together, apart = PRIVACY.spent(0.1, [2] * 100), PRIVACY.spent(0.1, [1] * 200)
    assert together > 1.2 * apart
    assert PRIVACY.spent(1.0, [2] * 100) == pytest.approx(PRIVACY.spent(1.0, [1] * 200))  # no sampling, no matter


@pytest.mark.integration
def test_who_takes_part_is_drawn_in_secret_and_may_be_nobody(tmp_path: Path) -> None:
    chosen = private("fedavg", probability=0.15, rounds=40)
    cohorts, lengths = [], []
    for name in ("one", "other"):  # the same seed
        folder = RunFolder(tmp_path / name)
        serve(chosen, Courier(chosen, tmp_path / f"sites-{name}"), folder)
        rounds = read_lines(folder.rounds, "round")
        cohorts.append([line["cohort"] for line in rounds])
        lengths += [line["norms"]["update"] for line in rounds if not line["cohort"]]
    assert cohorts[0] != cohorts[1]
    assert len(lengths) > 20  # of 80, with 0.85**3 each
    expected = PRIVACY.noise * PRIVACY.clip * chosen.objective().layout.size ** 0.5  # divided by one site a round
    assert lengths == pytest.approx([expected] * len(lengths), rel=0.2)  # noise, as in any other round


def test_the_sum_is_divided_by_what_was_expected_not_by_who_answered(tmp_path: Path) -> None:
    released: list[int] = []
    noised = Noised(lambda b, c: sums, Privacy(clip=1.0, noise=1e-9), 2, released.append)
    one = Update({"delta": torch.tensor([3.0, 1.0])}, 1, {"loss": 0.0})
    broadcast = Broadcast({"params": torch.zeros(2)}, 5)
    for sums in ([one], [one, Dropped(1, "left")], [one] * 3, []):
        answered = [update for update in noised(broadcast, [0, 1, 2]) if isinstance(update, Update)]
        folded, count = Aggregate(answered), sum(isinstance(update, Update) for update in sums)
        assert folded.count == 2
        assert folded.sum("delta").tolist() == pytest.approx([3.0 * count, count], abs=1e-6)
        assert folded.mean("delta").tolist() == pytest.approx([1.5 * count, 0.5 * count], abs=1e-6)
    assert released == [5] * 4


@pytest.mark.integration
def test_a_sum_that_left_is_paid_for_though_its_round_was_done_again(tmp_path: Path) -> None:
    chosen = private("naive-fedgloss", probability=1.0, rounds=2)
    failures = iter([True])

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> Sequence[Reply] | None:
        late = honest["round"] == 1 and honest["purpose"] == "train" and next(failures, False)
        return [Reply(site, error="failed")] if late else None

    folder = RunFolder(tmp_path / "run")
    serve(chosen, Courier(chosen, tmp_path, fault), folder, Rules(minimum=3))
    lines = read_lines(folder.path / "privacy.jsonl")
    assert [(line["round"], line["draw"]) for line in lines] == [(0, 1), (0, 1), (1, 2), (1, 3), (1, 3)]
    assert epsilons(folder)[-1] == PRIVACY.spent(1.0, [2, 1, 2])


@pytest.mark.integration
def test_what_was_spent_survives_the_server_and_other_terms_are_refused(tmp_path: Path) -> None:
    chosen, folder = private(rounds=3, probability=1.0), RunFolder(tmp_path / "run")
    letters = iter(range(100))

    def fault(site: int, letter: dict[str, Any], honest: dict[str, Any]) -> None:
        if next(letters) == 4:
            raise PowerCut

    with pytest.raises(PowerCut):
        serve(chosen, Courier(chosen, tmp_path, fault), folder)
    serve(chosen, Courier(chosen, tmp_path), folder)
    assert epsilons(folder) == [PRIVACY.spent(1.0, [1] * done) for done in (1, 2, 3)]
    other = private(rounds=3, probability=1.0, privacy=Privacy(clip=0.5, noise=5.0))
    with pytest.raises(InvalidInput, match=r"holds a run with privacy .*noise 1\.1.*, now .*noise 5"):
        serve(other, Courier(other, tmp_path), folder)
    bare = learning("fedgloss")
    with pytest.raises(InvalidInput, match=r"holds a run with privacy .*, now off"):
        serve(bare, Courier(bare, tmp_path), folder)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scaffold", "this method sends control_delta too, which is not clipped"),
        ("mofedsam", "this method divides by the sites' steps, which are not sent"),
    ],
)
def test_privacy_needs_methods_that_send_deltas_alone(name: str, reason: str, tmp_path: Path) -> None:
    other = private(name, probability=1.0)
    with pytest.raises(InvalidInput, match=reason):
        serve(other, Courier(other, tmp_path), RunFolder(tmp_path / "other"))


def test_privacy_needs_independent_sampling(tmp_path: Path) -> None:
    one = learning(build("fedavg", PRIVACY.clipped(LOCAL)), privacy=PRIVACY)
    with pytest.raises(InvalidInput, match=r"needs sites drawn independently; set training\.participation"):
        serve(one, Courier(one, tmp_path), RunFolder(tmp_path / "run"))
