"""Scripts that run inside a container, for any POSIX shell: `$1` is the working directory, `$2` the requested path.

A script that fails exits with one of `ERROR_KINDS`. `$(…; echo x)` protects names that end in a line break, which
`$(…)` alone would cut off.
"""

from __future__ import annotations

from weftline.tools.contexts.base import FileErrorKind

ERROR_KINDS: dict[int, FileErrorKind] = {
    40: "missing",
    41: "outside",
    42: "directory",
    43: "not_directory",
    44: "special",
    45: "denied",
}

RUN = """
mkdir -p "$1"; note=$1/$2; echo $$ > "$note"; shift 2
"$@"
code=$?; rm -f -- "$note"; exit $code
"""
"""Runs a command after recording the id of its process group, by which `END` ends it."""

END = """
pid=$(cat "$1/$2") && kill -KILL "-$pid"
rm -f -- "$1/$2"
"""

_INSIDE = """
root=$(readlink -f -- "$1"; echo x); root=${root%?x}
real=$(readlink -f -- "$2"; echo x); real=${real%?x}
[ -n "$real" ] || exit 40
case "$real/" in "$root"/*) ;; *) exit 41;; esac
rel=${real#"$root"}; rel=${rel#/}
"""

READ = f"""{_INSIDE}
[ -e "$real" ] || exit 40
[ -d "$real" ] && exit 42
[ -f "$real" ] || exit 44
[ -r "$real" ] || exit 45
printf '%s\\0' "$rel"
head -c "$3" -- "$real"
"""

WRITE = f"""
asked=$2; there=$2
while [ ! -e "$there" ] && [ ! -L "$there" ]; do
  up=$(dirname -- "$there"; echo x); up=${{up%?x}}
  [ "$up" = "$there" ] && break
  there=$up
done
rest=${{asked#"$there"}}
case "$rest/" in */../*) exit 41;; esac
set -- "$1" "$there"
{_INSIDE}
if [ -n "$rest" ]; then
  [ -d "$real" ] || exit 43
else
  [ -d "$real" ] && exit 42
  [ -f "$real" ] || exit 44
fi
to=$real$rest
up=$(dirname -- "$to"; echo x); up=${{up%?x}}
mkdir -p -- "$up" || exit 45
new=$up/.$$.weftline
cat > "$new" || exit 45
[ -e "$to" ] && chmod --reference="$to" -- "$new" 2>/dev/null
mv -f -- "$new" "$to" || exit 45
printf '%s' "${{to#"$root"/}}"
"""

LIST = f"""{_INSIDE}
[ -e "$real" ] || exit 40
[ -d "$real" ] || exit 43
cd -- "$real" || exit 45
printf '%s\\0' "$rel"
for name in * .*; do
  case "$name" in .|..) continue;; esac
  if [ -L "$name" ]; then kind=link
  elif [ -d "$name" ]; then kind=directory
  elif [ -f "$name" ]; then kind=file
  elif [ -e "$name" ]; then kind=other
  else continue
  fi
  printf '%s %s\\0' "$kind" "$name"
done
"""
