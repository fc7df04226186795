# shellcheck shell=bash disable=SC2034 # the launchers read what is set here
# What the launchers share: reading [--dry-run] [N] GIN_FILE RUN_DIR [-- ARGUMENT ...], and quoting.
set -euo pipefail

usage() { # [MESSAGE]: with the comment at the top of the launcher
  [[ $# -eq 0 ]] || echo "$0: $1" >&2
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" >&2
  exit 2
}

needs() { # NAME ...: variables that must have a value
  local name
  for name in "$@"; do
    [[ -n ${!name-} ]] || usage "set $name"
  done
}

quoted() { # WORD ...: on one line, as any shell reads them back
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
    -*) usage "unknown option $1; arguments for padir come after --" ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [[ $stop ]]; then
  ((${#words[@]} + $# == 0)) || usage "--stop takes nothing else"
  return
fi
((${#words[@]} == ${expected_words:-2})) || usage "${#words[@]} arguments before -- instead of ${expected_words:-2}"
(($# == 0)) || shift
subcommand=${SUBCOMMAND:-train}
[[ $subcommand =~ ^(train|translate|distill)$ ]] || usage "SUBCOMMAND=$subcommand is not train, translate or distill"
gin_file=${words[${#words[@]} - 2]} run_dir=${words[${#words[@]} - 1]}
command=("${PADIR:-padir}" "$subcommand" "--gin_file=$gin_file" "--run_dir=$run_dir" "$@")
