#!/usr/bin/env bash
# The demonstration of a language model: a real server, an answer as it comes, a sweep over its precisions, a
# report. Usage: demo_llm.sh OUT   (wattserve, its client and loadgen on the PATH; run it through `make demo-llm`)
set -euo pipefail
out=${1:?usage: demo_llm.sh OUT}
export HF_HUB_OFFLINE=1
model=$(wattserve demo-model demo-llm) # first: nothing is removed for a run that cannot start
# Of these, what this machine runs natively.
variants=$(wattserve variants --json | python3 -c 'import json, sys
wanted = ("fp32", "bf16", "fp16", "int8-weight-only", "int4-weight-only")
print(*[each["variant"] for each in json.load(sys.stdin)["variants"] if each["native"] and each["variant"] in wanted], sep=",")')
rm -rf "$out"
mkdir -p "$out"

# Of a text that the model was not trained on, every other paragraph: prompts, and rows for the perplexity.
awk 'length > 80 && NR % 4 == 1' "$model/heldout.txt" >"$out/prompts.txt"
awk 'length > 80 && NR % 4 == 3' "$model/heldout.txt" >"$out/heldout.txt"
loadgen prepare --prompts "$out/prompts.txt" --tokenizer "$model" --max-length 48 --output-tokens 32 --out "$out/prompts"
loadgen prepare --input "$out/heldout.txt" --tokenizer "$model" --out "$out/heldout"

wattserve serve --model demo-llm --variants "$variants" --port 0 --metrics-port 0 >"$out/server.out" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until grep -q '^wattserve ready' "$out/server.out"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start"; exit 1; }
  sleep 0.2
done
cat "$out/server.out"
address=$(sed -n 's/^wattserve ready: gRPC \([^,]*\),.*/\1/p' "$out/server.out")
wattserve-client --target "$address" ready --wait 600

echo
wattserve-client --target "$address" generate "And it came to pass" \
  --max-new-tokens 60 --temperature 0.7 --seed 7 --settled
echo
loadgen sweep --target "$address" --dataset "$out/prompts" --held-out "$out/heldout" --variants "$variants" \
  --preset look --concurrency 1,16 --blocks 5 --seconds 1.5 --out "$out/sweep"

kill -TERM "$server"
wait "$server"
trap - EXIT
cat <<END

Where to look
  $out/sweep/report.html    joules, tokens per second and perplexity by precision, with what they rest on
  $out/sweep/results.csv    the points, for a spreadsheet
What to try next
  . .venv/bin/activate                              puts wattserve, its client and loadgen on the PATH of your shell
  wattserve serve --model demo-llm                  the same server, to call: docs/how-to/language-models.md
  wattserve-client generate "The LORD is my"        an answer as it comes, and its receipt
END
