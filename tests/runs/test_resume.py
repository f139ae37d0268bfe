"""A run that is killed, at any moment, goes on to the very bytes of one that was not."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from runs.child import job, live

from fedgloss import InvalidInput, LocalTraining
from fedgloss.algorithms import build
from fedgloss.checkpoint import Checkpoints
from fedgloss.records import RunFolder, read_json, read_lines
from fedgloss.run import Execution, execute

HERE = Path(__file__).parent
METHODS = ["fedgloss", "scaffold", "fedsmoo", "fedadam"]
ROUNDS = 12
TINY = 400  # bytes: less than one client's memory, so every memory goes through the disk


def start(folder: Path, method: str, *, die_at: int = 0, budget: int | None = None) -> subprocess.Popen[bytes]:
    """The run in a new interpreter."""
    numbers = [str(ROUNDS), str(die_at), str(budget or 0)]
    command = [sys.executable, str(HERE / "child.py"), str(folder), method, *numbers]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(HERE.parent)})


def fork(folder: Path, method: str, die_at: int, budget: int | None) -> int | None:
    """The run in a copy of this process, which spares the imports; how it ended."""
    arguments = (folder, method, ROUNDS, die_at, budget)
    process = multiprocessing.get_context("fork").Process(target=live, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def contents(folder: Path) -> dict[str, bytes]:
    """Every byte that must be the same: weights, client memories, records."""
    kept = [folder / "rounds.jsonl", *folder.glob("checkpoints/*.safetensors"), *folder.glob("clients/*/*")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    made: dict[str, dict[str, bytes]] = {}

    def of(method: str) -> dict[str, bytes]:
        if method not in made:
            folder = tmp_path_factory.mktemp("undisturbed") / method
            execute(job(method, ROUNDS), RunFolder(folder), Execution(checkpoint_seconds=0))
            made[method] = contents(folder)
        return made[method]

    return of


def killed_and_resumed(folder: Path, method: str, moments: list[int], budget: int | None) -> None:
    for moment in moments:
        assert fork(folder, method, moment, budget) in (-signal.SIGKILL, 0)
    assert fork(folder, method, 0, budget) == 0


@pytest.mark.parametrize("method", METHODS)
def test_killed_three_times_inside_writes(method: str, tmp_path: Path, undisturbed) -> None:
    moments = random.Random(method).sample(range(3, 120), 3)
    killed_and_resumed(tmp_path / "run", method, moments, TINY if method == "scaffold" else None)
    assert contents(tmp_path / "run") == undisturbed(method)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, TINY])
@pytest.mark.parametrize("method", METHODS)
def test_killed_twenty_times_inside_writes_and_anywhere(method: str, budget, tmp_path: Path, undisturbed) -> None:
    generator = random.Random(f"{method}{budget}")
    folder = tmp_path / "run"
    for turn in range(20):
        if turn % 2:
            process = start(folder, method, die_at=generator.randrange(1, 60), budget=budget)
        else:
            process = start(folder, method, budget=budget)
            time.sleep(generator.uniform(1.5, 4))
            process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(folder, method, budget=budget).wait() == 0
    assert contents(folder) == undisturbed(method)


def test_a_tiny_client_memory_changes_nothing(tmp_path: Path, undisturbed) -> None:
    tiny = Execution(checkpoint_seconds=0, client_memory=TINY)
    execute(job("fedsmoo", ROUNDS), RunFolder(tmp_path / "run"), tiny)
    assert contents(tmp_path / "run") == undisturbed("fedsmoo")


def test_rare_checkpoints_change_nothing_but_what_is_kept(tmp_path: Path, undisturbed) -> None:
    execute(job("fedgloss", ROUNDS), RunFolder(tmp_path / "run"), Execution(checkpoint_seconds=1e9))
    assert contents(tmp_path / "run") == undisturbed("fedgloss")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_an_interrupted_run_ends_after_its_round_and_goes_on(number, tmp_path: Path, undisturbed) -> None:
    folder = tmp_path / "run"

    class Interrupt:
        def started(self, job, done, notices):
            pass

        def stepped(self, step, seconds):
            if step.state.round == 5:
                os.kill(os.getpid(), number)

        def ended(self, summary):
            self.summary = summary

    tracker = Interrupt()
    summary = execute(job("fedgloss", ROUNDS), RunFolder(folder), Execution(), [tracker])
    assert summary["status"] == "interrupted"
    assert summary["rounds"] == 5
    assert summary["reported"] == {}
    assert tracker.summary == summary
    assert read_json(folder / "summary.json")["status"] == "interrupted"
    finished = execute(job("fedgloss", ROUNDS), RunFolder(folder), Execution(checkpoint_seconds=0))
    assert finished["status"] == "finished"
    assert contents(folder) == undisturbed("fedgloss")


def test_more_rounds_are_the_rounds_of_a_longer_run(tmp_path: Path) -> None:
    short, long = RunFolder(tmp_path / "short"), RunFolder(tmp_path / "long")
    execute(job("fedgloss", 8), short, Execution())
    execute(job("fedgloss", 14), short, Execution())
    execute(job("fedgloss", 14), long, Execution())
    ends = [Checkpoints(folder).state(14) for folder in (short, long)]
    assert ends[0]["params"].equal(ends[1]["params"])
    assert ends[0]["tail_sum"].equal(ends[1]["tail_sum"])
    rounds = [read_lines(folder.rounds, "round") for folder in (short, long)]
    assert rounds[0] == rounds[1]
    assert read_json(short.summary)["reported"] == read_json(long.summary)["reported"]


def ended_early(method: str, rounds: int, folder: Path, *, at: int) -> None:
    """A run of so many rounds that is told to stop after ``at`` of them."""

    class Interrupt(Listen):
        def stepped(self, step, seconds):
            if step.state.round == at:
                os.kill(os.getpid(), signal.SIGTERM)

    assert execute(job(method, rounds), RunFolder(folder), Execution(), [Interrupt()])["rounds"] == at


def test_rounds_to_report_that_were_not_evaluated_are_refused(tmp_path: Path) -> None:
    """The last two rounds are reported; a run that is to end at 8 has gone past 7 without an evaluation."""
    ended_early("fedavg", 20, tmp_path, at=7)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match=r"8 asked for, .* past round 7 without an evaluation; ask for more"):
        execute(job("fedavg", 8), RunFolder(tmp_path), Execution())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    execute(job("fedavg", 9), RunFolder(tmp_path), Execution())
    execute(job("fedavg", 9), RunFolder(tmp_path / "at once"), Execution())
    ends = [read_json(folder / "summary.json") for folder in (tmp_path, tmp_path / "at once")]
    assert ends[0]["reported"] == ends[1]["reported"]


def test_a_run_that_grows_by_little_says_what_it_cannot_have(tmp_path: Path) -> None:
    """Models that became the last ones afterwards are not in the sum of the last models; all else is the same."""
    execute(job("fedavg", 8), RunFolder(tmp_path / "short"), Execution())
    listener = Listen()
    short = execute(job("fedavg", 9), RunFolder(tmp_path / "short"), Execution(), [listener])
    long = execute(job("fedavg", 9), RunFolder(tmp_path / "long"), Execution())
    assert any("(--average) cannot be had" in notice for notice in listener.notices)
    assert short["reported"] == long["reported"]
    lines = [read_lines(tmp_path / name / "rounds.jsonl", "round") for name in ("short", "long")]
    assert lines[0] == lines[1]
    execute(job("fedavg", 11), RunFolder(tmp_path / "short"), Execution(), [listener])
    assert listener.notices == []


def test_a_run_that_goes_on_has_no_summary_of_its_former_end(tmp_path: Path) -> None:
    class Stumble(Listen):
        def stepped(self, step, seconds):
            raise RuntimeError("stumbled")

    execute(job("fedavg", 4), RunFolder(tmp_path), Execution())
    execute(job("fedavg", 4), RunFolder(tmp_path), Execution())
    assert read_json(tmp_path / "summary.json")["rounds"] == 4
    with pytest.raises(RuntimeError):
        execute(job("fedavg", 9), RunFolder(tmp_path), Execution(), [Stumble()])
    assert not (tmp_path / "summary.json").exists()


def test_fewer_rounds_than_done_are_refused(tmp_path: Path) -> None:
    execute(job("fedavg", 6), RunFolder(tmp_path), Execution())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match=r"training\.rounds: 4 asked for, but the run has done 6"):
        execute(job("fedavg", 4), RunFolder(tmp_path), Execution())
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_records_without_their_checkpoints_are_left_alone(tmp_path: Path) -> None:
    execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    shutil.rmtree(tmp_path / "checkpoints")
    before = contents(tmp_path)
    with pytest.raises(InvalidInput, match="has records but no checkpoint; put checkpoints/ back"):
        execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    assert contents(tmp_path) == before
    (tmp_path / "checkpoints").write_text("a file where the folder was")
    with pytest.raises(InvalidInput, match=r"checkpoints: cannot be read \(Not a directory\)"):
        execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    assert contents(tmp_path) == before


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").mkdir()
    with pytest.raises(InvalidInput, match=r"\.lock: cannot write \(Is a directory\)"):
        execute(job("fedavg", 3), RunFolder(tmp_path), Execution())


def test_another_configuration_is_refused_with_the_differences(tmp_path: Path) -> None:
    execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    before = contents(tmp_path)
    with pytest.raises(InvalidInput, match=r"algorithm\.name: 'fedavg' -> 'fedgloss'"):
        execute(job("fedgloss", 3), RunFolder(tmp_path), Execution())
    assert contents(tmp_path) == before


def test_two_writers_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(InvalidInput, match="another process is writing"):
        execute(job("fedavg", 3), folder, Execution())


def test_asking_whether_a_run_is_written_leaves_no_trace(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.busy
    assert not list(tmp_path.iterdir())
    with folder.locked():
        assert folder.busy
    assert not folder.busy


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InvalidInput, match="exists and is not a run"):
        execute(job("fedavg", 3), RunFolder(tmp_path), Execution())
    assert (tmp_path / "thesis.txt").read_text() == "precious"


class Listen:
    """A tracker that keeps what the user is told."""

    def started(self, job, done, notices):
        self.notices = notices

    def stepped(self, step, seconds): ...

    def ended(self, summary): ...


def test_a_torn_line_is_dropped_and_said_so(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 4), folder, Execution())
    whole = folder.rounds.read_bytes()
    with folder.rounds.open("ab") as file:
        file.write(b'{"type":"round","roun')
    assert read_lines(folder.rounds)[-1]["rounds"] == 4
    listener = Listen()
    execute(job("fedavg", 4), folder, Execution(), [listener])
    assert any("torn" in notice for notice in listener.notices)
    assert folder.rounds.read_bytes() == whole


def test_another_machine_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 2), folder, Execution())
    text = folder.environment.read_text()
    folder.environment.write_text(text.replace('"torch": "', '"torch": "1.0-'))
    listener = Listen()
    execute(job("fedavg", 3), folder, Execution(), [listener])
    assert any("other last bits: torch: 1.0-" in notice for notice in listener.notices)


def test_other_code_is_noticed_and_each_checkpoint_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listener = RunFolder(tmp_path), Listen()
    execute(job("fedavg", 2), folder, Execution())
    monkeypatch.setattr("fedgloss.environment.code_fingerprint", lambda: "another")
    monkeypatch.setattr("fedgloss.checkpoint.code_fingerprint", lambda: "another")
    execute(job("fedavg", 4), folder, Execution(), [listener])
    began = read_json(folder.environment)["code"]
    assert any(f"other last bits: code: {began} -> another" in notice for notice in listener.notices)
    assert Checkpoints(folder).manifest(4).code == "another"
    again = Listen()
    execute(job("fedavg", 5), folder, Execution(), [again])
    assert not any("code" in notice for notice in again.notices)  # it is whose that went on with it last


def test_kept_checkpoints_can_all_be_gone_back_to(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedgloss", 10), folder, Execution(checkpoint_seconds=1e9, keep_every=4))
    checkpoints = Checkpoints(folder)
    assert checkpoints.rounds() == [0, 4, 8, 9, 10]
    for done in checkpoints.rounds():
        assert checkpoints.state(done).round == done
        for client, version in checkpoints.versions(done).items():
            assert version < done
            assert (folder.clients / "0000" / f"{client}-{version}.safetensors").exists()


def test_kept_checkpoints_stay_whatever_is_asked_for_later(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedgloss", 6), folder, Execution(keep_every=2))
    execute(job("fedgloss", 9), folder, Execution())
    execute(job("fedgloss", 12), folder, Execution(keep_every=5))
    assert Checkpoints(folder).rounds() == [0, 2, 4, 6, 10, 11, 12]
    for done in Checkpoints(folder).rounds():
        for client, version in Checkpoints(folder).versions(done).items():
            assert (folder.clients / "0000" / f"{client}-{version}.safetensors").exists()


def test_the_memory_before_the_last_round_is_kept_for_analysis(tmp_path: Path) -> None:
    """Local models of the last round can be recomputed: its state, and its cohort's memories, are still there."""
    folder = RunFolder(tmp_path)
    execute(job("fedgloss", 10), folder, Execution(checkpoint_seconds=1e9))
    checkpoints = Checkpoints(folder)
    assert checkpoints.rounds() == [9, 10]
    for done in (9, 10):
        for client, version in checkpoints.versions(done).items():
            assert (folder.clients / "0000" / f"{client}-{version}.safetensors").exists()


@pytest.mark.parametrize("victim", ["checkpoints/00000004.safetensors", "checkpoints/00000004.json"])
def test_a_damaged_checkpoint_is_named(victim: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 4), folder, Execution())
    path = tmp_path / victim
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])
    with pytest.raises(InvalidInput, match=Path(victim).name):
        execute(job("fedavg", 5), folder, Execution())


MANIFESTS = [
    lambda lengths: [],
    lambda lengths: lengths | {"rounds": "many"},
    lambda lengths: lengths | {"rounds": -5},
    lambda lengths: {"rounds": lengths["rounds"]},
]


@pytest.mark.parametrize("change", MANIFESTS, ids=["a list", "a word", "negative", "missing"])
def test_a_manifest_that_makes_no_sense_is_named(change, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 4), folder, Execution())
    path = folder.checkpoints / "00000004.json"
    content = read_json(path)
    path.write_text(json.dumps(content | {"lengths": change(content["lengths"])}))
    with pytest.raises(InvalidInput, match=r"00000004\.json: is not a checkpoint's manifest"):
        execute(job("fedavg", 5), folder, Execution())


def test_a_record_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"type":"round"}\n3\n')
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl: line 2 is not a JSON object"):
        read_lines(path, "round")


@pytest.mark.parametrize("content", [b"", b"xx\n", b"x" * 100_000], ids=["empty", "shorter", "longer"])
def test_changed_records_are_refused_and_left_as_they_are(content: bytes, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 4), folder, Execution())
    folder.rounds.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl: was changed after the run's checkpoint was made"):
        execute(job("fedavg", 5), folder, Execution())
    assert folder.rounds.read_bytes() == content


def test_a_changed_configuration_file_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("fedavg", 4), folder, Execution())
    changed = replace(job("fedavg", 4), config=folder.config.read_text() + "[local]\nlr = 7.0\n")
    folder.config.write_text(changed.config)
    with pytest.raises(InvalidInput, match=r"config\.toml: was changed after the run's checkpoint was made"):
        execute(changed, folder, Execution())


def test_a_lost_client_memory_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    execute(job("feddyn", 6), folder, Execution())
    for path in tmp_path.glob("clients/*/*"):
        path.unlink()
    with pytest.raises(InvalidInput, match=r"the memory of client .* cannot be read"):
        execute(job("feddyn", 20), folder, Execution())


def test_a_read_only_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is the file system's own error, raised where it would be."""
    folder = RunFolder(tmp_path / "run")
    execute(job("fedavg", 3), folder, Execution())
    before = contents(folder.path)

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system", str(folder.config))

    monkeypatch.setattr("fedgloss.run.write_atomically", refuse)
    with pytest.raises(InvalidInput, match=r"config\.toml: cannot write .Read-only file system"):
        execute(job("fedavg", 4), folder, Execution())
    assert contents(folder.path) == before


def test_a_full_disk_leaves_the_earlier_checkpoint_intact() -> None:
    """On a real file system that really is full."""
    script = """
import sys
from dataclasses import replace
from pathlib import Path
from runs.child import job, live
from fedgloss import InvalidInput, LocalTraining
from fedgloss.algorithms import build
from fedgloss.records import RunFolder
from fedgloss.run import Execution, execute
import resource, signal
folder = RunFolder(Path(sys.argv[1]))
execute(job("feddyn", 4), folder, Execution(checkpoint_seconds=0))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))  # larger writes fail, as on a full disk
try:
    execute(job("feddyn", 30), folder, Execution(checkpoint_seconds=0))
except InvalidInput as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
execute(job("feddyn", 8), folder, Execution(checkpoint_seconds=0))
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", script, f"{folder}/run"],
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},
            capture_output=True,
            text=True,
        )
    assert "cannot write" in done.stdout
    assert done.returncode == 0, done.stderr


def test_divergence_is_a_result(tmp_path: Path) -> None:
    exploding = job("fedavg", 50)
    object.__setattr__(exploding.plan.limits, "max_norm", 3.0)
    summary = execute(exploding, RunFolder(tmp_path), Execution())
    assert summary["status"] == "diverged"
    assert summary["divergence"]["round"] == summary["rounds"] + 1
    assert "norm of the model" in summary["divergence"]["reason"]
    assert summary["reported"] == {}
    assert len(read_lines(tmp_path / "rounds.jsonl", "round")) == summary["rounds"]


def test_a_figure_that_is_no_number_is_a_divergence_too(tmp_path: Path) -> None:
    plain = job("fedavg", 8)
    lost = replace(plain.problem, metrics={"accuracy": lambda outputs, targets: targets * float("nan")})
    summary = execute(replace(plain, problem=lost), RunFolder(tmp_path), Execution())
    assert summary["status"] == "diverged"
    assert summary["divergence"]["reason"] == "the accuracy of the model is not finite"
    assert (summary["divergence"]["round"], summary["rounds"]) == (4, 3)


def test_the_round_of_a_clients_divergence_counts_from_one(tmp_path: Path) -> None:
    exploding = replace(job("fedavg", 8), algorithm=build("fedavg", LocalTraining(lr=1e38, batch_size=8)))
    summary = execute(exploding, RunFolder(tmp_path), Execution())
    assert summary["divergence"]["round"] == summary["rounds"] + 1
    assert summary["divergence"]["client"] is not None
