#!/usr/bin/env bash
# A generic gRPC command line: it learns both services from the server by reflection, no .proto file needed.
#   pip install buf-bin; bash docs/examples/reflection.sh [HOST:PORT] [MODEL]
# With grpcurl the first call reads: grpcurl -plaintext HOST:PORT list
set -euo pipefail
server=http://${1:-127.0.0.1:50051}
model=${2:-demo}
# Where the server asks for an API key. On a command line every user of this machine could read it; so not there.
key() { if [ -n "${WATTSERVE_API_KEY:-}" ]; then echo "authorization: Bearer $WATTSERVE_API_KEY"; fi; }
call() { buf curl --protocol grpc --http2-prior-knowledge --header @<(key) --reflect-header '*' "$@"; }

call --list-methods "$server"
call -d '{}' "$server/grpc.health.v1.Health/Check"
call -d '{"text": {"texts": ["a delightful film"]}, "wait_for_settled_energy": true}' \
  "$server/wattserve.v1.Inference/Predict"
call -d '{"model_name": "'"$model"'", "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1],
  "contents": {"bytes_contents": ["'"$(printf 'a delightful film' | base64)"'"]}}]}' \
  "$server/inference.GRPCInferenceService/ModelInfer"
