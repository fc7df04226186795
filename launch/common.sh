# shellcheck shell=bash disable=SC2034 # the launchers read the variables set here
# Shared by the launchers: parses [--dry-run] [N] GIN_FILE RUN_DIR [-- ARGUMENT ...], and quotes words for a shell.
set -euo pipefail
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || {
  echo "$0: needs bash 4.4 or newer, this is $BASH_VERSION; on macOS: brew install bash" >&2
  exit 2
}

usage() { # [MESSAGE]: prints it and the comment at the top of the launcher, and exits with status 2
  [[ $# -eq 0 ]] || echo "$0: $1" >&2
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" >&2
  exit 2
}

needs() { # NAME ...: exits with a message if one of these variables is unset or empty
  local name
  for name in "$@"; do
    [[ -n ${!name-} ]] || usage "set $name"
  done
}

quoted() { # WORD ...: prints them on one line, quoted for any POSIX shell
  local line='' word
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
    line+=" $word"
  done
  echo "${line# }"
}

dry_run='' stop=''
words=()
while (($#)) && [[ $1 != -- ]]; do
  case $1 in
    --dry-run) dry_run=yes ;;
    --stop) [[ ${can_stop-} ]] || usage "this launcher has no --stop"; stop=yes ;;
    -*) usage "unknown option $1; put arguments for padir after --" ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [[ $stop ]]; then
  ((${#words[@]} + $# == 0)) || usage "--stop takes no other arguments"
  return
fi
((${#words[@]} == ${expected_words:-2})) || usage "needs ${expected_words:-2} arguments before --, found ${#words[@]}"
(($# == 0)) || shift
subcommand=${SUBCOMMAND:-train}
[[ $subcommand =~ ^(train|translate|distill)$ ]] || usage "SUBCOMMAND=$subcommand must be train, translate or distill"
# Without shards each process would translate everything, into the same file.
[[ $subcommand != translate || " $*" == *" --shards"[=\ ]* ]] || usage "SUBCOMMAND=translate needs --shards=N after --"
gin_file=${words[${#words[@]} - 2]} run_dir=${words[${#words[@]} - 1]}
command=("${PADIR:-padir}" "$subcommand" "--gin_file=$gin_file" "--run_dir=$run_dir" "$@")
