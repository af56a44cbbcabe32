#!/usr/bin/env bash
# Turn the line of `again.sh` into a comment: `say.sh "verdict=… rows=… differing=…"`. The line may be anybody's: only
# a verdict of the list and numbers pass, and every word of the comment is written here. Exit code 0: accepted.
set -euo pipefail
line=${1:-} rows=0 differing=0 code=1
if [[ $line =~ ^verdict=([a-z]{4,12})\ rows=([0-9]{1,9})\ differing=([0-9]{1,9})$ ]]; then
  verdict=${BASH_REMATCH[1]} rows=${BASH_REMATCH[2]} differing=${BASH_REMATCH[3]}
else
  verdict=none
fi
case $verdict in
accepted) text="**Accepted.** Of $rows random rows that were made again, $differing differ, as many as rounding explains." code=0 ;;
refused) text="**Refused.** \`rbk board enter --check submissions/NAME\` prints every reason." ;;
differs) text="**Refused.** Of $rows random rows that were made again, $differing differ." ;;
gone) text="**Refused.** The weights cannot be fetched." ;;
unfinished) text="**Not decided.** The time was up; of $rows rows that were made again, $differing differ." ;;
*) text="**Not decided.** The check did not finish." ;;
esac
printf '<!-- robustbench-kpca entry -->\n### Entry\n\n%s\n' "$text"
exit $code
