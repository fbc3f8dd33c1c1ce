#!/usr/bin/env bash
# The demonstration: a real server on a real model, a sweep over every precision, a report.
# Usage: demo.sh OUT   (wattserve and loadgen on the PATH; run it through `make demo`)
set -euo pipefail
out=${1:?usage: demo.sh OUT}
export HF_HUB_OFFLINE=1
model=$(wattserve demo-model) # first: nothing is removed for a run that cannot start
rm -rf "$out"
mkdir -p "$out"

loadgen prepare --input "$model/heldout.jsonl" --text-column text --label-column label \
  --tokenizer "$model" --out "$out/dataset"

wattserve serve --model demo --port 0 --metrics-port 0 >"$out/server.out" &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until grep -q '^wattserve ready' "$out/server.out"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start"; exit 1; }
  sleep 0.2
done
cat "$out/server.out"
address=$(sed -n 's/^wattserve ready: gRPC \([^,]*\),.*/\1/p' "$out/server.out")

loadgen sweep --target "$address" --dataset "$out/dataset" --preset look --out "$out/sweep"

kill -TERM "$server"
wait "$server"
trap - EXIT
echo
echo "Open $out/sweep/report.html"
