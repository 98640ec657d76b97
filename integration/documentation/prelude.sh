# shellcheck shell=bash
# The environment of the pages' consoles: `weir serve` runs in the background, because readers have another terminal, and
# usual ports are replaced by free ones.
exec 2>&1
declare -A running

# Stops the process whose proxy has this address.
leave() { # ADDRESS
    local process=${running[$1]-}
    [ -n "$process" ] || return 0
    kill "$process" 2>/dev/null || true
    wait "$process" 2>/dev/null || true
    unset "running[$1]"
}

weir() {
    if [ "${1-}" != serve ]; then
        command weir "$@"
        return
    fi
    local proxies=() proxy admin=$WEIR_ADMIN i
    for ((i = 2; i < $#; i++)); do
        case ${!i} in
        --proxy) proxy=${*:i+1:1} proxies+=("${proxy#redirect:}") ;;
        --admin) admin=${*:i+1:1} ;;
        esac
    done
    [ ${#proxies[@]} -gt 0 ] || proxies=("$WEIR_PROXY")
    for proxy in "${proxies[@]}"; do leave "$proxy"; done
    local log
    log=$(mktemp .serve.XXXXXX)
    command weir "$@" >"$log" 2>&1 &
    for proxy in "${proxies[@]}"; do running[$proxy]=$!; done
    # Waits long, because a debug build on a busy machine is slow. The test has a deadline for the whole page.
    until curl --silent --max-time 120 "http://$admin/readyz" | grep -q '"status":"ready"'; do
        if ! kill -0 "${running[$proxy]}" 2>/dev/null; then
            cat "$log"
            return 1
        fi
        sleep 0.02
    done
}

# Commands on pages that build the binary; the tests have built it.
cargo() {
    if [ "$*" = "build --release" ]; then return; fi
    if [ "${*:1:3}" != "run --release --" ]; then
        echo "the pages say no \`cargo $*\`"
        return 1
    fi
    weir "${@:4}"
}

# As on a terminal: no progress meter, and numbered list items.
curl() { command curl --no-progress-meter "$@"; }
redis-cli() { command redis-cli --no-raw -p "$REDIS_PORT" "$@"; }
redis-server() {
    command redis-server --bind 127.0.0.1 --port "$REDIS_PORT" --save '' >.redis.log 2>&1 &
    running[redis]=$!
    until [ "$(redis-cli ping)" = PONG ]; do sleep 0.02; done
}

trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
