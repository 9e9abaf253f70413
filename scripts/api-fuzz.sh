#!/usr/bin/env bash
# api-fuzz.sh [SECONDS] - fuzzes the controller's API by its OpenAPI document, for 600 s unless another time is given.
#
# Starts a controller of its own in a temporary directory, with simulated agents of five hosts, and runs schemathesis
# against it as admin: half of the time with any names, half with those of a host and a VM that are there. schemathesis
# comes from PyPI into target/api-fuzz. Fails if anything is found: a 5xx, an answer or a refusal that the document does
# not have, a request that should have been refused; and if an agent lost contact, a guest ran twice, or the controller
# has more than 300 MB in RAM. FUZZ_PROFILE=release takes the programs of a release build.
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
profile=${FUZZ_PROFILE:-debug}
[ "$profile" = debug ] && flags= || flags=--release
cargo build --quiet --locked $flags -p skein-controller
cargo build --quiet --locked $flags -p skein-lab-fleet --example fleet
program=$(pwd)/target/$profile/skein-controller
fleet=$(pwd)/target/$profile/examples/fleet

dir=$(mktemp -d)
trap '[ -z "${agents-}" ] || kill "$agents"; [ -z "${pid-}" ] || kill "$pid"; rm -rf "$dir"' EXIT
"$program" init --name fuzz --controller fuzz --listen "127.0.0.1:$port" --address 127.0.0.1 --ca "$dir/ca" \
  --identity "$dir/controller" --config "$dir/controller.toml" --store "sqlite:$dir/store/controller.db" \
  >"$dir/init.log"
SKEIN_LOG=warn "$program" run --config "$dir/controller.toml" 2>"$dir/run.log" &
pid=$!
token=$(cat "$dir/controller/admin.token")
url=https://127.0.0.1:$port
get() { curl --silent --fail --cacert "$dir/ca/ca.pem" "$url$1"; }
for _ in $(seq 300); do get /healthz >/dev/null && break; sleep 0.2; done

# Simulated agents: their process ends with its input.
mkfifo "$dir/told"
"$fleet" agents <"$dir/told" >"$dir/agents.log" 2>&1 &
agents=$!
exec 3>"$dir/told"
echo "{\"Begin\":{\"ca\":\"$dir/ca\",\"controller\":\"127.0.0.1:$port\",\"seed\":1,\"first\":1,\"end\":6,\
\"guests_per_host\":3,\"planetlab\":null}}" >&3
status_of() { curl --silent --fail --cacert "$dir/ca/ca.pem" -H "Authorization: Bearer $token" "$url/api/v1/cluster"; }
for _ in $(seq 300); do status_of | grep -q '"online":5' && break; sleep 0.2; done

# No schema says what a request for a certificate is, or a rule, a VM's definition, a plan of rates, a fencing device,
# which hosts there are, or that a window has to end after its begin. An ETag that is well formed may be of another
# version, and that is said first.
cat >"$dir/schemathesis.toml" <<'END'
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", 401, 403, 404, 409, 412, 429, "5xx"]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 412, 415, 422, 428, 429, "5xx"]
[[operations]]
include-operation-id = ["join", "set_rule", "create_vm", "set_settings", "set_host", "set_vm", "migrate_vm"]
checks.positive_data_acceptance.enabled = false
END

# Names that are there. The host and the VM have to stay for that.
{ cat "$dir/schemathesis.toml"; printf '[parameters]\n"path.host" = "h0001"\n"path.vm" = "v00001"\n'; } \
  >"$dir/there.toml"

# A stream of events never ends by itself, and the fuzzer's own token has to stay.
status=0
cd "$dir"
fuzz() { # CONFIGURATION OPTION...
  local config=$1
  shift
  "$venv/bin/schemathesis" --config-file "$dir/$config" run "$url/openapi.json" \
    --header "Authorization: Bearer $token" --tls-verify "$dir/ca/ca.pem" --max-time $((seconds / 2)) \
    --request-timeout 40 --workers 2 \
    --phases examples,coverage,fuzzing,stateful --exclude-checks unsupported_method,ignored_auth \
    --exclude-operation-id get_events --exclude-operation-id remove_token "$@" || status=$?
  get /healthz >/dev/null || { echo "api-fuzz: the controller does not answer any more" >&2; status=1; }
  echo "api-fuzz: the controller has $(awk '/VmRSS/ { print $2 / 1000 }' "/proc/$pid/status") MB in RAM"
}
fuzz there.toml --exclude-operation-id remove_host --exclude-operation-id delete_vm
fuzz schemathesis.toml
wrong() { echo "api-fuzz: $1" >&2; status=1; }
kill -0 "$agents" || wrong "the agents have ended: $(tail -5 "$dir/agents.log")"
sleep 3
after=$(status_of)
grep -q '"lost":0' <<<"$after" || wrong "a host has lost contact: $after"
! grep -q "RUNS TWICE" <<<"$after" || wrong "a guest runs twice: $after"
[ "$(awk '/VmHWM/ { print $2 }' "/proc/$pid/status")" -lt 300000 ] || wrong "the controller had more than 300 MB in RAM"
if grep -q panicked "$dir/run.log"; then
  echo "api-fuzz: the controller panicked" >&2
  cat "$dir/run.log" >&2
  status=1
fi
exit $status
