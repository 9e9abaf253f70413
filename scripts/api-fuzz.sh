#!/usr/bin/env bash
# api-fuzz.sh [SECONDS] - fuzzes the controller's API by its OpenAPI document, for 600 s unless another time is given.
#
# Starts a controller of its own in a temporary directory, with a token of each role, and runs schemathesis against it
# as admin. schemathesis comes from PyPI into target/api-fuzz. Fails if anything is found: a 5xx, an answer or a refusal
# that the document does not have, a request that should have been refused.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh
seconds=${1:-600}
port=${API_FUZZ_PORT:-17943}

venv=$(pwd)/target/api-fuzz/venv
if [ ! -x "$venv/bin/schemathesis" ]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" --quiet install 'schemathesis==4.32.5'
fi
cargo build --quiet --locked -p skein-controller
program=$(pwd)/target/debug/skein-controller

dir=$(mktemp -d)
trap '[ -z "${pid-}" ] || kill "$pid"; rm -rf "$dir"' EXIT
"$program" init --name fuzz --controller fuzz --listen "127.0.0.1:$port" --address 127.0.0.1 --ca "$dir/ca" \
  --identity "$dir/controller" --config "$dir/controller.toml" --store "sqlite:$dir/store/controller.db" \
  >"$dir/init.log"
SKEIN_LOG=warn "$program" run --config "$dir/controller.toml" 2>"$dir/run.log" &
pid=$!
token=$(cat "$dir/controller/admin.token")
url=https://127.0.0.1:$port
get() { curl --silent --fail --cacert "$dir/ca/ca.pem" "$url$1"; }
for _ in $(seq 300); do get /healthz >/dev/null && break; sleep 0.2; done

# No schema says what a request for a certificate is, or a rule. An ETag that is well formed may be of another version.
cat >"$dir/schemathesis.toml" <<'END'
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 429, "5xx"]
[[operations]]
include-operation-id = "join"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-operation-id = "set_rule"
checks.positive_data_acceptance.enabled = false
END

# A stream of events never ends by itself, and the fuzzer's own token has to stay.
status=0
cd "$dir"
"$venv/bin/schemathesis" --config-file "$dir/schemathesis.toml" run "$url/openapi.json" \
  --header "Authorization: Bearer $token" --tls-verify "$dir/ca/ca.pem" --max-time "$seconds" \
  --request-timeout 40 --workers 2 \
  --phases examples,coverage,fuzzing,stateful --exclude-checks unsupported_method,ignored_auth \
  --exclude-operation-id get_events --exclude-operation-id remove_token || status=$?
get /healthz >/dev/null || { echo "api-fuzz: the controller does not answer any more" >&2; status=1; }
if grep -q panicked "$dir/run.log"; then
  echo "api-fuzz: the controller panicked" >&2
  cat "$dir/run.log" >&2
  status=1
fi
exit $status
