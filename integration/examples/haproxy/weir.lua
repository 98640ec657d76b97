-- `http-request lua.weir` asks Weir about a request and stores the answer in variables of the transaction: weir.deny,
-- weir.status, weir.body, weir.grpc_status and weir.grpc_message, and the response's headers by name, with `_` for `-`.
-- Needs HAProxy 2.5 or newer.

-- The listener in haproxy.cfg that forwards the check. HAProxy's client opens a connection for each check; the listener
-- keeps its connections to Weir.
local LISTENER = "abns@weir-8000"

-- The longest time that a request waits for Weir, in milliseconds.
local PATIENCE = 200

local FIELDS = { "ratelimit-policy", "ratelimit", "retry-after", "cache-control", "content-type" }

-- Headers of the client's connection and body, which do not belong to the check.
local OWN = { "connection", "content-length", "expect", "keep-alive", "te", "transfer-encoding", "upgrade" }

local function ask(txn)
    local headers = txn.http:req_get_headers()
    for _, name in ipairs(OWN) do
        headers[name] = nil
    end
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-uri"] = { txn.f:pathq() or "*" }
    headers["x-forwarded-host"] = { txn.f:req_fhdr("host") }
    headers["x-forwarded-for"] = { txn.f:src() }
    local question = { url = "http://127.0.0.1/haproxy", dst = LISTENER, headers = headers, timeout = PATIENCE }
    local answer = core.httpclient():get(question)
    local function first(name)
        local values = answer.headers and answer.headers[name]
        return values and values[0]
    end
    -- Any other answer is HAProxy's own: it cannot reach Weir.
    local is_weirs = answer
        and (answer.status == 200 or first("x-ratelimit-status") or first("content-type") == "application/problem+json")
    if not is_weirs then
        return
    end
    txn:set_var("txn.weir.deny", answer.status ~= 200)
    if answer.status ~= 200 then
        txn:set_var("txn.weir.status", answer.status)
        txn:set_var("txn.weir.body", answer.body)
    end
    -- gRPC clients look for a gRPC status.
    if first("grpc-status") then
        txn:set_var("txn.weir.grpc_status", first("grpc-status"))
        txn:set_var("txn.weir.grpc_message", "a limit is reached")
    end
    for _, name in ipairs(FIELDS) do
        local value = first(name)
        if value then
            txn:set_var("txn.weir." .. name:gsub("-", "_"), value)
        end
    end
end

core.register_action("weir", { "http-req" }, ask)
