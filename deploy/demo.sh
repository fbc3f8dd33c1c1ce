#!/usr/bin/env bash
# The demonstration: a real server on a real model, a sweep over three precisions, a report.
# Usage: demo.sh OUT   (wattserve and loadgen on the PATH; run it through `make demo`)
set -euo pipefail
out=${1:?usage: demo.sh OUT}
export HF_HUB_OFFLINE=1
model=$(wattserve demo-model) # first: nothing is removed for a run that cannot start
# The first three precisions that are served by default on this machine: fp32, and two that may save.
variants=$(wattserve variants --json | python3 -c 'import json, sys
print(*[each["variant"] for each in json.load(sys.stdin)["variants"] if each["by_default"]][:3], sep=",")')
rm -rf "$out"
mkdir -p "$out"

# The longer reviews: of a short one, much is the server's work around the model, which no precision changes.
awk 'length > 200' "$model/heldout.jsonl" >"$out/reviews.jsonl"
loadgen prepare --input "$out/reviews.jsonl" --text-column text --label-column label \
  --tokenizer "$model" --out "$out/dataset"

wattserve serve --model demo --variants "$variants" --port 0 --metrics-port 0 >"$out/server.out" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until grep -q '^wattserve ready' "$out/server.out"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start"; exit 1; }
  sleep 0.2
done
cat "$out/server.out"
address=$(sed -n 's/^wattserve ready: gRPC \([^,]*\),.*/\1/p' "$out/server.out")

# It answers by now, and still loads what it has not answered with: nothing is measured beside that.
wattserve-client --target "$address" ready --wait 600

# Many short blocks rather than few long ones: the intervals are over blocks.
loadgen sweep --target "$address" --dataset "$out/dataset" --variants "$variants" --preset look \
  --concurrency 1,32 --blocks 7 --seconds 1 --out "$out/sweep"

kill -TERM "$server"
wait "$server"
trap - EXIT
cat <<END

Where to look
  $out/sweep/report.html    the answer first, then every figure with what it rests on
  $out/sweep/results.csv    the points, for a spreadsheet
  $out/sweep/records.jsonl  every request with its joules
What to try next
  make serve                                    the same server, to call: docs/tutorial.md
  ARGS="--model ./my-classifier" make serve     your own model: docs/how-to/own-model.md
  . .venv/bin/activate                          puts wattserve and loadgen on the PATH of your shell
  loadgen sweep --preset quick ...              figures that hold better: docs/measuring.md
END
