"""Launch scripts are read as bash would run them; what only a running one could know is told, never guessed."""

import subprocess

import pytest

from configs.importing import shell
from configs.importing.shell_expansion import Word
from configs.importing.shell_tokens import ShellError


def words(script, program="show"):
    """The words behind `program` in the one command that begins with it."""
    found = [c.words for c in shell.read(script).commands if c.words[0].text == program]
    assert len(found) == 1, found
    return list(found[0][1:])


def texts(script):
    assert not [word for word in words(script) if word.unknown]
    return [word.text for word in words(script)]


KNOWN = {
    "continuation": "show --a 1 \\\n  --b 2\n",
    "comments": "# show no\nshow a#b 'c # d' # e\n",
    "quotes": "show 'a  \"b\" $C' \"d 'e' \\\" \\$f\" g\\ h $'i\\tj'\n",
    "empty": 'E=\nshow $E "$E" a$E\n',
    "scalar": 'X="a b"; show $X "$X" ${X}c "${X}"d\n',
    "list": 'A=( --x 1  # no\n  --y "2 3"\n)\nshow ${A[@]} "${A[@]}" "${A[*]}" ${A} ${A[2]} ${#A[@]}\n',
    "appended": 'A=(a)\nA+=(b "c d")\nS=x\nS+=y\nshow "${A[@]}" $S\n',
    "list around": 'A=(a b)\nshow "x${A[@]}y"\n',
    "default": 'show ${NOPE:-a} "${NOPE:-b c}" ${NOPE-${ALSO:-d}} ${NOPE:+e} f\nX=\nshow2 "${X:-g}" "${X-h}"\n',
    "assigned default": ': "${N:=7}"\nshow $N\n',
    "cut": "P=/a/b.tar.gz; show ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${#P}\n",
    "arithmetic": "a=3; b=$((a * 4 + 2)); show $((b / 4)) $(((a + b) * 2)) $((-7 / 2)) ${b}\n",
    "assignment is not split": 'A="a  b"; B=$A; show "$B"\n',
    "several commands": "A=1; B=$A && show $B | cat > /dev/null 2>&1 &\n",
    "environment of one command": "A=1\nA=2 show $A\n",
    "exports": "export A=1 B='2 3'\ndeclare -r C=$A\nshow $A \"$B\" $C\n",
    "here-document": "cat > /dev/null <<EOF\nshow no 'unbalanced\nEOF\nshow a\n",
    "unset": "A=1; unset A; show a$A\n",
    "a function": "f() {\n  show $X\n}\nX=1\nf\n",
    "one turn": "for x in a; do show $x; done\n",
    "same in a condition": "A=1\nif true; then A=1; fi\nshow $A\n",
    "conditions apart": 'if [ "a" = b ]; then echo; fi\nfor i in 1 2; do echo; done\nA=1\nshow $A\n',
}


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in ("a function", "default", "unset")])
def test_words_are_those_that_bash_makes(name):
    script = KNOWN[name]
    shown = 'show() { printf "%s\\0" "$@" >&3; }; show2() { :; }\n'
    done = subprocess.run(
        ["bash", "-c", f"{{ {shown}{script}\nwait; }} 3>&1 >/dev/null"], capture_output=True, text=True, env={}
    )
    assert done.stderr == ""
    assert texts(script) == done.stdout.split("\0")[:-1]


def test_a_default_names_the_variables_that_it_stands_for():
    found = words(KNOWN["default"])
    assert [w.text for w in found] == ["a", "b c", "d", "f"]
    assert [w.default for w in found] == ["NOPE", "NOPE", "NOPE, ALSO", ""]
    assert [w.text for w in words(KNOWN["default"], "show2")] == ["g", ""]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("show $NOPE\n", "NOPE is set nowhere in the script"),
        ("show a${NOPE}b\n", "NOPE is set nowhere"),
        ("show $1\n", "an argument of the script"),
        ("show $(hostname)\n", "a command writes"),
        ("show `hostname`\n", "a command writes"),
        ("N=$(nvidia-smi -L | wc -l)\nshow $N\n", "a command writes"),
        ("show $((NOPE + 1))\n", "NOPE is set nowhere"),
        ("show $((1 << 3))\n", "arithmetic is not read"),
        ("show $((1 / 0))\n", "arithmetic is not read"),
        ("A=b\nshow ${A^^} \n", "not read"),
        ("A=1\nif [ x ]; then A=2; fi\nshow $A\n", "A depends on a condition or loop (line 2)"),
        ("if [ x ]; then A=2; else A=3; fi\nshow $A\n", "A depends on a condition or loop (line 1)"),
        ("[ x ] && A=2\nshow $A\n", "A depends on a condition or loop (line 1)"),
        ("case $x in a) A=2;; esac\nshow $A\n", "A depends on a condition"),
        ("[ x ] || { echo; A=2; }\nshow $A\n", "A depends on a condition"),
        ("for x in a b; do show $x; done\n", "x takes several values (line 1)"),
        ("if [ x ]; then A=(--use-tis); fi\nshow ${A[@]}\n", "A depends on a condition"),
    ],
)
def test_what_only_a_running_script_knows_is_unknown(script, why):
    (word,) = words(script)
    assert why in word.unknown


def test_a_list_that_grows_under_a_condition_is_known_but_for_that():
    found = words("A=(--a 1)\nif [ x ]; then A+=(--b); fi\nshow ${A[@]}\n")
    assert [(w.text, bool(w.unknown)) for w in found] == [("--a", False), ("1", False), ("--b", True)]


def test_a_text_that_grows_under_a_condition_is_known_but_for_that():
    found = words('A="--a 1"\nif [ x ]; then A="$A --b"; else A="$A --c"; fi\nshow $A\n')
    assert [(w.text, bool(w.unknown)) for w in found] == [("--a", False), ("1", False), ("${A}", True)]


def test_of_a_text_that_is_split_only_what_is_unknown_is():
    found = words('A="a=1 b=$NOPE c=$(x y)"\nshow $A\n')
    assert [(w.text, bool(w.unknown)) for w in found] == [("a=1", False), ("b=$NOPE", True), ("c=$(xy)", True)]


def test_an_unknown_list_may_be_any_number_of_words():
    assert [w.many for w in words('show ${M[@]} "${M[@]}" $M "$M" "a${M[@]}"\n')] == [True, True, False, False, False]


@pytest.mark.parametrize("script", ["bash -c 'show a'", "A='show a'\neval $A", 'A=a\nbash -lc "show $A"', "$A show a"])
def test_commands_in_texts_are_read(script):
    found = [[w.text for w in c.words] for c in shell.read(script).commands]
    assert [one[one.index("show") :] for one in found] == [["show", "a"]]


def test_lines_are_those_of_the_words():
    script = "A=(\n --a 1\n\n --b 2\n)\nshow \\\n ${A[@]} \\\n --c\n"
    assert [(w.text, w.line) for w in words(script)] == [("--a", 2), ("1", 2), ("--b", 4), ("2", 4), ("--c", 8)]


def test_sourced_files_are_named():
    assert shell.read("source models/a.sh\n. b.sh\n").sourced == [Word("models/a.sh", 1), Word("b.sh", 2)]


@pytest.mark.parametrize("named", ['$(dirname "${BASH_SOURCE[0]}")/../a.sh', "${NOPE}/a b.sh"])
def test_a_sourced_file_that_only_a_shell_finds_is_named_as_it_is_written(named):
    (word,) = shell.read(f'source "{named}"\n').sourced
    assert word.text == named and word.unknown


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("show 'a\n", "line 1: a ' is missing"),
        ('\n\nshow "a\n', 'line 3: a " is missing'),
        ("show ${a\n", "line 1: a } is missing"),
        ("show $(a\n", "line 1: a ( is never closed"),
        ("A=(a b\n", "line 1: a list that is opened"),
        ("X=" + "$(" * 5000, "more than 30 deep"),
        ("X=" + "${A:-" * 5000, "more than 30 deep"),
        ("A=aaaaaaaa\n" + "A=$A$A\n" * 40, "its variables make more than"),
        ("A=(a b)\n" + "A+=(${A[@]} ${A[@]})\n" * 40, "its variables make more than"),
        ("a b\n" * 5_001, "more than 5,000 commands"),
    ],
)
def test_what_bash_would_not_read_or_nobody_wrote_is_refused(script, said):
    with pytest.raises(ShellError) as error:
        shell.read(script)
    assert said in str(error.value)
