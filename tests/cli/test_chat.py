"""``wcodec chat``, and prompts of ``wcodec generate``: templates, history, the cache of keys and values, Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from command import Cli, document

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from wcodec import _measure  # noqa: E402
from wcodec._cli import chat, generate, prompts, sampling  # noqa: E402
from wcodec._cli.conversation import Conversation  # noqa: E402
from wcodec._core.errors import InputError  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}{{ '<' + m['role'] + '> ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def talker(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model, with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "talker"
    folder.mkdir()
    for path in model.iterdir():
        if path.name != "heldout.txt":
            (folder / path.name).symlink_to(path.resolve())
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def loaded(talker: Path) -> tuple[Any, Any]:
    """The model as it is and its tokenizer: a conversation is one of any model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(talker, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(talker)


def asked(a: Conversation, text: str, tokens: int = 12) -> _measure.Generation:
    return a.ask(text, None, [], tokens)


def test_a_cache_that_is_kept_changes_nothing(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    kept, fresh = (Conversation(model, tokenizer, "m", "Be brief.", {"do_sample": False}) for _ in range(2))
    lengths = []
    for text in ("The function", "and a list", "True if"):
        fresh.forget()
        mine, theirs = asked(kept, text), asked(fresh, text)
        assert mine.tokens == theirs.tokens and mine.prompt_tokens == theirs.prompt_tokens
        lengths.append(len(kept._cached))
    # It grew by what was said, and was not made anew.
    assert lengths[0] < lengths[1] < lengths[2] and kept.messages == fresh.messages
    assert [m["role"] for m in kept.all_messages()] == ["system", *["user", "assistant"] * 3]
    # Another history is cut off where it differs.
    kept.messages[-1]["content"] = "something else"
    fresh.messages[-1]["content"] = "something else"
    fresh.forget()
    assert asked(kept, "x").tokens == asked(fresh, "x").tokens
    kept.reset()
    assert kept.messages == [] and kept.tokens == 0 and kept._cache is None


def test_only_the_new_tokens_are_computed(loaded: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = loaded
    talk = Conversation(model, tokenizer, "m", None, {"do_sample": False})
    seen: list[int] = []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda _, ids: seen.append(ids[0].shape[1]))
    try:
        asked(talk, "The function returns a list of strings", 4)
        first = seen[0]
        seen.clear()
        found = asked(talk, "More", 4)
    finally:
        hook.remove()
    assert seen[0] < found.prompt_tokens - first + 2 and set(seen[1:]) == {1}


def test_a_conversation_that_is_too_long(loaded: tuple[Any, Any]) -> None:
    talk = Conversation(*loaded, "m", None, {"do_sample": False})
    with pytest.raises(InputError, match="the model takes 1,024"):
        asked(talk, "word " * 1100)
    assert talk.messages == []
    limit = loaded[0].config.max_position_embeddings
    words = "word " * 800
    used = len(prompts.ids_of(loaded[1], [{"role": "user", "content": words}], "m"))
    assert used < limit
    # It ends where the positions do.
    assert len(asked(talk, words, 2000).tokens) <= limit - used


def test_a_template_that_refuses(loaded: tuple[Any, Any]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(loaded[0].name_or_path)
    tokenizer.chat_template = "{{ raise_exception('no system messages here') }}"
    with pytest.raises(InputError, match="does not take these messages.*no system messages here"):
        prompts.ids_of(tokenizer, [{"role": "user", "content": "x"}], "m")


def test_lines_of_a_pipe(talker: Path, tmp_path: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["The function", "", "/stats", "a \\", "b", f"/save {tmp_path}/talk.json", "/system Be brief.", "/system",
             "/reset", "/help", "/quit", "never asked"]  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    status, out, err = run("chat", talker, "--max-new-tokens", "6", "-q")
    assert status == 0, err
    record = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [m["content"] for m in record[::2]] == ["The function", "a \nb"]
    assert out.startswith(record[1]["content"] + "\nlast answer: 6 tokens") and "memory: weights" in out
    assert record[3]["content"] in out and "\nBe brief.\n" in out and "/reset" in out and "never" not in out
    assert "talk.json: written" in err and "new conversation" in err
    # A script learns of an error by the status.
    for line, wrong in (("/nothing", "there is no command /nothing"), ("/save", "needs the name of a file"),
                        (f"/save {tmp_path}/talk.json", "exists")):  # fmt: skip
        monkeypatch.setattr(sys, "stdin", io.StringIO(line))
        status, _, err = run("chat", talker, "-q")
        assert status == 2 and wrong in err


def test_without_a_template_it_continues(model: Path, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("The function returns\nThe function returns\n"))
    status, out, err = run("chat", model, "--max-new-tokens", "6")
    first, second = out.splitlines()[0], out[len(out) // 2 :].splitlines()[0]
    assert status == 0 and first == second and "has no chat template" in err
    continued = run("generate", model, "The function returns", "--max-new-tokens", "6", "-q")[1]
    assert continued.startswith(f"The function returns{first}")
    status, _, err = run("chat", model, "--system", "x")
    assert status == 2 and "without a chat template" in err


def test_ctrl_c_stops_an_answer_and_keeps_it(loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupting:
        def __init__(self) -> None:
            self.seen = 0

        def put(self, value: Any) -> None:
            self.seen += 1
            if self.seen == 5:
                os.kill(os.getpid(), signal.SIGINT)

        def end(self) -> None:
            pass

    before = signal.getsignal(signal.SIGINT)
    talk = Conversation(*loaded, "m", None, {"do_sample": False})
    with chat._stopping() as stop:
        found = talk.ask("The function", Interrupting(), [stop], 50)
    assert stop.asked and 3 <= len(found.tokens) < 10 and len(talk.messages) == 2
    assert signal.getsignal(signal.SIGINT) is before
    # The second one does not wait.
    with pytest.raises(KeyboardInterrupt), chat._stopping() as stop:
        stop.asked = True
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)


def test_a_terminal(talker: Path, tmp_path: Path) -> None:
    """Ctrl-C in an answer keeps the session, at the prompt it explains itself, and Ctrl-D ends it."""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "wcodec", "chat", str(talker), "--max-new-tokens", "900"], stdin=terminal,
        stdout=terminal, stderr=terminal, start_new_session=True, cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    )  # fmt: skip
    os.close(terminal)
    text = ""

    def wait(what: str, since: int = 0) -> None:
        nonlocal text
        end = time.monotonic() + 240
        while what not in text[since:]:
            assert time.monotonic() < end and process.poll() is None, text
            if select.select([master], [], [], 0.1)[0]:
                text += os.read(master, 1 << 16).decode(errors="replace")

    try:
        wait("Ctrl-D quits")
        wait("> ")
        os.write(master, b"The function\n")
        at = len(text)
        # Some of the answer beside the echo.
        end = time.monotonic() + 240
        while len(text) < at + 60 and time.monotonic() < end:
            wait("", at)
            text += os.read(master, 1 << 16).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        wait("(stopped)", at)
        at = len(text)
        os.write(master, b"/stats\n")
        wait("2 messages", at)
        wait("> ", text.index("2 messages", at))
        # The line editor takes signals once it waits for a line, which on a busy machine may be a while later.
        for _ in range(120):
            process.send_signal(signal.SIGINT)
            if select.select([master], [], [], 2)[0]:
                text += os.read(master, 1 << 16).decode(errors="replace")
            if "(Ctrl-D quits)" in text[at:]:
                break
        wait("(Ctrl-D quits)", at)
        wait("> ", text.index("(Ctrl-D quits)", at))
        # The line editor has taken the terminal over when the prompt is there.
        time.sleep(0.3)
        os.write(master, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def test_how_tokens_are_chosen() -> None:
    def options(greedy: bool = True, **given: Any) -> dict[str, Any]:
        names = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
        return sampling.options_of(Namespace(**{**dict.fromkeys(names), **given}), greedy=greedy)

    assert options()["do_sample"] is False and options(greedy=False) == {}
    assert options(temperature=0.0, greedy=False)["do_sample"] is False
    assert options(temperature=0.7) == {"do_sample": True, "temperature": 0.7}
    assert options(top_k=5) == {"do_sample": True, "top_k": 5}
    assert options(repetition_penalty=1.2, greedy=False) == {"repetition_penalty": 1.2}


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n  two words\n")
    assert prompts.of_file(path) == ["one", "  two words"]
    lines = path.with_suffix(".jsonl")
    lines.write_text('{"prompt": "a\\nb", "id": 1}\n{"prompt": "c"}\n')
    assert prompts.of_file(lines) == ["a\nb", "c"]
    lines.write_text('{"prompt": "a"}\n{"text": "c"}\n')
    with pytest.raises(Exception, match="line 2 is no object"):
        prompts.of_file(lines)
    path.write_text("\n \n")
    with pytest.raises(InputError, match="no prompts"):
        prompts.of_file(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        prompts.of_file(path)


def test_generate_for_each_prompt(talker: Path, tmp_path: Path, run: Cli) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("The function\nTrue if\n")
    common = ("generate", talker, "--prompts", path, "--baseline", talker, "--max-new-tokens", "5", "-q",
              "--bits", "6")  # fmt: skip
    status, out, _ = run(*common)
    assert status == 0 and out.count("--- compressed: ") == 2 == out.count("--- original: ")
    record = document(run(*common, "--json")[1], "generate")
    pairs = record["generations"]
    assert [p["prompt"] for p in pairs] == ["The function", "True if"]
    assert out.endswith(f"{record['same']} of 2 prompts the same\n")
    for pair in pairs:
        same = pair["tokens"] == pair["baseline_generation"]["tokens"]
        assert (pair["first_difference"] is None) == same and pair["same_tokens"] <= 5
    assert record["same"] == sum(p["first_difference"] is None for p in pairs)


def test_generate_with_a_template_and_a_seed(talker: Path, run: Cli) -> None:
    common = ("generate", talker, "The function", "--chat", "--max-new-tokens", "8", "--json")
    greedy = document(run(*common)[1], "generate")
    drawn = [document(run(*common, "--temperature", "1.5", "--seed", str(n))[1], "generate") for n in (1, 1, 2)]
    assert greedy["prompt_tokens"] > 4 and greedy["chat"] is True
    assert drawn[0]["tokens"] == drawn[1]["tokens"] != drawn[2]["tokens"]
    assert run("generate", talker, "The function", "--chat", "--max-new-tokens", "4", "-q")[1].startswith("> The fun")


def test_a_slow_run_is_advised_where_the_package_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_measure, "advice", lambda model: f"{model}: use --cache", raising=False)
    assert generate.advice_on_speed("m") == "m: use --cache"
    monkeypatch.setattr(_measure, "advice", lambda model: None)
    assert generate.advice_on_speed("m") is None
    monkeypatch.delattr(_measure, "advice")
    assert generate.advice_on_speed("m") is None
