#!/usr/bin/env bash
# A newcomer's first steps: a limit with a mistake and its error, a 429 and the reason for it, a higher limit for one id without
# a restart, a simulation of another limit on the access log, and that limit in force, seen in the metrics.
#
#     integration/documentation/newcomer.sh                   builds Weir first
#     integration/documentation/newcomer.sh target/debug/weir
#
# It uses a temporary directory and free ports, and fails if any output differs from what it expects.
set -euo pipefail

if [ $# = 0 ]; then
    cd "$(dirname "$0")/../.."
    cargo build --release --locked
    set -- target/release/weir
fi
weir=$(realpath "$1")
cd "$(mktemp -d)"
trap 'kill "${server-}" 2>/dev/null || true; rm -rf "$PWD"' EXIT

step() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'newcomer.sh: %s\n' "$*" >&2
    exit 1
}
# Shows a command and its output, and keeps the output for `sees`.
run() {
    printf '$ %s\n' "$*"
    status=0
    printed=$("$@" 2>&1) || status=$?
    printf '%s\n' "$printed"
}
sees() { grep -qF -- "$1" <<<"$printed" || fail "there is no \`$1\` in what was printed"; }
# Waits up to two minutes for a condition, because a debug build on a busy machine is slow.
until_it() {
    local deadline=$((SECONDS + 120))
    until "$@"; do
        ((SECONDS < deadline)) || fail "not within two minutes: $*"
        sleep 0.05
    done
}
ask() { # KEY
    run curl --silent --show-error --include --max-time 120 -H "x-api-key: $1" "http://$proxy/v1/things"
}

step "A limit: three requests an hour for each key. It has a mistake."
tee limits.yaml <<'END'
limits:
  RequestsPerKey:
    by: { header: x-api-key }
    cuont: 3
    period: 1h
END

step "What is wrong with it?"
run "$weir" check limits.yaml
[ $status = 1 ] || fail "a mistake ends with exit code 1, and not $status"
sees 'limits.yaml:4:5'
sees 'cuont'
# shellcheck disable=SC2016 # backticks of the message
sees 'did you mean `count`?'

step "Corrected."
sed -i 's/cuont/count/' limits.yaml
run "$weir" check limits.yaml
[ $status = 0 ] || fail "the rules are right"

step "Weir in front of a built-in upstream, which answers with what it gets."
echo '{}' >overrides.yaml
"$weir" serve --upstream echo --overrides overrides.yaml --access-log access.json --proxy 127.0.0.1:0 --admin 127.0.0.1:0 \
    --log-format json 2>log &
server=$!
# The system picks the ports; the log has them.
address() { sed -n "s/.*\"listener\":\"$1\",\"address\":\"\([^\"]*\)\".*/\1/p; s/.*\"address\":\"\([^\"]*\)\",\"listener\":\"$1\".*/\1/p" log; }
is_open() { [ -n "$(address admin)" ] || { kill -0 $server 2>/dev/null || fail "it has ended: $(cat log)"; false; }; }
until_it is_open
proxy=$(address proxy) admin=$(address admin)
echo "It listens on $proxy."

step "Three requests pass, and each is told what is left."
for left in 2 1 0; do
    ask alice
    sees 'HTTP/1.1 200 OK'
    sees "ratelimit: \"RequestsPerKey\";r=$left"
done

step "The fourth does not."
ask alice
sees 'HTTP/1.1 429 Too Many Requests'
sees 'retry-after: '
sees 'RequestsPerKey allows burst 3, 3 per 1h'

step "Why? Which limits are there for such a request, and by which id?"
run "$weir" explain GET /v1/things -H 'x-api-key: alice'
sees 'RequestsPerKey: applies'
sees 'id        alice'
sees 'allows    burst 3, 3 per 1h'
run "$weir" bucket --admin "http://$admin" get RequestsPerKey:alice
sees 'burst 3, 3 per 1h'

step "Five an hour for alice, in a file that Weir reads while it runs."
tee overrides.yaml <<'END'
RequestsPerKey:alice: { count: 5, period: 1h }
END
run "$weir" check limits.yaml --overrides overrides.yaml
[ $status = 0 ] || fail "the override is right"
is_in_force() { "$weir" bucket --admin "http://$admin" get RequestsPerKey:alice | grep -q 'burst 5, 5 per 1h'; }
until_it is_in_force

step "She has used three of them, and the next one passes. It is the same process."
ask alice
sees 'HTTP/1.1 200 OK'
sees 'ratelimit: "RequestsPerKey";r=1'
kill -0 $server || fail "the process that was started has ended"

step "For all others it is three."
ask bob
sees 'ratelimit: "RequestsPerKey";r=2'

step "A client can make up keys. Would a limit by address deny anybody else? The access log has six requests."
tee proposed.yaml <<'END'
limits:
  RequestsPerAddress:
    by: ip/64
    count: 5
    period: 1h
END
is_logged() { [ "$(grep -c . access.json)" = 6 ]; }
until_it is_logged
run "$weir" simulate access.json --limits proposed.yaml --deny-at-most 0.1%
[ $status = 0 ] || fail "the log can be read"
sees '1 of 6 requests (16.7%) would be denied'
sees '6 as burst and count denies 0 requests'

step "Six, then. What does the change make stricter?"
sed '1d; s/count: 5/count: 6/' proposed.yaml | cat limits.yaml - >changed.yaml
cat changed.yaml
run "$weir" diff limits.yaml changed.yaml
[ $status = 1 ] || fail "a stricter change ends with exit code 1, and not $status"
sees 'RequestsPerAddress: new'
run "$weir" simulate access.json --limits changed.yaml --against limits.yaml
[ $status = 0 ] || fail "the log can be read"
sees 'Requests denied only by changed.yaml: 0, only by limits.yaml: 0'

step "In force, without a restart."
mv changed.yaml limits.yaml
has_both() { curl --silent --max-time 120 "http://$admin/limits" | grep -q RequestsPerAddress; }
until_it has_both
ask carol
sees '"RequestsPerKey";r=2'
sees '"RequestsPerAddress";r=5'

step "Watching it: the metrics, and a page for people."
run bash -c "curl --silent --show-error --max-time 120 http://$admin/metrics | grep '^weir_decisions_total.* [1-9]'"
sees 'weir_decisions_total{limit="RequestsPerKey",result="denied"} 1'
sees 'weir_decisions_total{limit="RequestsPerAddress",result="allowed"} 1'
run curl --silent --show-error --max-time 120 --output page.html --write-out '%{http_code} %{content_type}\n' "http://$admin/"
sees '200 text/html'

step "That was it."
