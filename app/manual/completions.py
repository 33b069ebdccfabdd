"""Completions for bash and zsh. They need no other file, so that sourcing one is enough."""
from __future__ import annotations

import shlex

from programs import Option, Program

_AS_FILES = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur")'
_AS_FOLDERS = 'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur")'


def _words(words: list[str]) -> str:
    return f"mapfile -t COMPREPLY < <(compgen -W {shlex.quote(' '.join(words))} -- \"$cur\")"


def _bash_of(program: Program, indent: str, first: list[str]) -> list[str]:
    """Completes the value after an option, or else options, `first` or files."""
    by_action: dict[str, list[str]] = {}
    for option in program.options():
        action = {"values": _words(option.values), "file": _AS_FILES, "folder": _AS_FOLDERS, "nothing": ":"}.get(option.kind())
        if action:
            by_action.setdefault(action, []).extend(option.names)
    lines = []
    if by_action:
        lines += [f"{indent}case $prev in"]
        for action, names in by_action.items():
            lines += [f"{indent}  {' | '.join(names)})", f"{indent}    {action}", f"{indent}    return", f"{indent}    ;;"]
        lines += [f"{indent}esac"]
    names = [name for option in program.options() for name in option.names]
    lines += [f"{indent}if [[ $cur == -* ]]; then", f"{indent}  {_words(names)}"]
    if first:
        lines += [f"{indent}else", f"{indent}  {_words(first)}"]
    elif program.words:
        lines += [f"{indent}else", f"{indent}  {_AS_FILES}"]
    return [*lines, f"{indent}fi"]


def _values_of(program: Program, title: str) -> list[str]:
    return [name for said, entries in program.lists if title in said for name, _ in entries]


def bash(program: Program, after_dashes: str = "") -> str:
    """`after_dashes`: the program whose options come after "--"."""
    function = "_" + program.name.replace("-", "_")
    lines = [f"# bash completion for {program.name}", f"{function}() {{",
             '  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}',
             '  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD - 2]}; fi',
             "  COMPREPLY=()"]
    if after_dashes:
        inner = f"_{after_dashes}"
        lines += ["  local i", "  for ((i = 1; i < COMP_CWORD; ++i)); do", "    [[ ${COMP_WORDS[i]} == -- ]] || continue",
                  "    if ((i + 1 == COMP_CWORD)); then", f"      {_words([after_dashes])}", "    else",
                  f"      declare -F {inner} >/dev/null || . \"${{BASH_SOURCE[0]%/*}}/{after_dashes}\" 2>/dev/null",
                  f"      ! declare -F {inner} >/dev/null || {inner}", "    fi", "    return", "  done"]
    if program.commands:
        lines += ["  case ${COMP_WORDS[1]} in"]
        for name, command in program.commands.items():
            lines += [f"    {name})", *_bash_of(command, "      ", _values_of(command, "Codecs")),
                      "      return", "      ;;"]
        lines += ["  esac"]
    lines += [*_bash_of(program, "  ", program.one_of or list(program.commands)), "}", f"complete -F {function} {program.name}"]
    return "\n".join(lines) + "\n"


def _zsh_option(option: Option) -> list[str]:
    text = option.text.split("; ")[0].split(" (")[0]
    for mark in "\\[]:":
        text = text.replace(mark, "\\" + mark)
    value = ""
    if option.placeholder:
        place = option.placeholder.split("|")[0].replace(":", "\\:").replace("[", "\\[").replace("]", "\\]") or "value"
        action = {"values": f"({' '.join(option.values)})", "file": "_files", "folder": "_files -/"}.get(option.kind(), " ")
        value = f":{place}:{action}"
    return [shlex.quote(f"{name}{'=' if value and name.startswith('--') else ''}[{text}]{value}") for name in option.names]


def _zsh_arguments(program: Program, indent: str, words: list[str]) -> list[str]:
    specs = [spec for option in program.options() for spec in _zsh_option(option)]
    specs += map(shlex.quote, words)
    joint = f" \\\n{indent}  "
    return [f"{indent}_arguments{joint}{joint.join(specs)}"]


def _zsh_own(program: Program) -> list[str]:
    """Options in the place of a command."""
    said = " ".join(shlex.quote(f"{name}:{option.text}") for option in program.options() for name in option.names)
    return [f"    local -a options=({said})", "    _describe -o -t options option options"] if said else []


def zsh(program: Program, after_dashes: str = "") -> str:
    function = "_" + program.name.replace("-", "_")
    lines = [f"#compdef {program.name}", f"# zsh completion for {program.name}", f"{function}() {{"]
    if program.commands:
        said = " ".join(shlex.quote(f"{name}:{command.head.rstrip('.')}") for name, command in program.commands.items())
        lines += ["  if ((CURRENT == 2)); then", f"    local -a commands=({said})",
                  *_zsh_own(program), "    _describe -t commands command commands", "    return", "  fi", "  shift words", "  ((--CURRENT))", "  case $words[1] in"]
        for name, command in program.commands.items():
            codecs = _values_of(command, "Codecs")
            words = [f"*:codec:({' '.join(codecs)})"] if codecs else ["*:file:_files"] if command.words else []
            lines += [f"    {name})", *_zsh_arguments(command, "      ", words), "      ;;"]
        lines += ["  esac"]
    else:
        if after_dashes:
            lines += ["  local at=${words[(i)--]}", "  if ((at < CURRENT)); then", "    words=(\"${(@)words[at+1,-1]}\")",
                      "    ((CURRENT -= at))", "    _normal", "    return", "  fi"]
        one_of = [f"1:word:({' '.join(program.one_of)})", "2:folder:_files -/"] if program.one_of else []
        lines += _zsh_arguments(program, "  ", one_of or (["*:file:_files"] if program.words else []))
    return "\n".join([*lines, "}", f"{function} \"$@\""]) + "\n"
