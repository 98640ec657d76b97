-- `http-request lua.weir` asks Weir about a request and keeps the answer in variables of the transaction: weir.deny,
-- weir.status, weir.body, weir.grpc_status and weir.grpc_message, and fields of the response by their names with `_` for
-- `-`. HAProxy 2.5 or newer.

-- The listener of haproxy.cfg that passes the question on. HAProxy's client opens a connection for each question, and the
-- listener has those to Weir kept.
local LISTENER = "abns@weir-8000"

-- Milliseconds that a request waits for Weir at most.
local PATIENCE = 200

local FIELDS = { "ratelimit-policy", "ratelimit", "retry-after", "cache-control" }

-- They are about the client's connection and its body, which are not the question's.
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
    -- Any other answer is not Weir's but HAProxy's own, which cannot reach it.
    if not answer or (answer.status ~= 200 and first("content-type") ~= "application/problem+json") then
        return
    end
    txn:set_var("txn.weir.deny", answer.status ~= 200)
    if answer.status ~= 200 then
        txn:set_var("txn.weir.status", answer.status)
        txn:set_var("txn.weir.body", answer.body)
    end
    -- Clients of gRPC look for a status of their own.
    if answer.status == 429 and (txn.f:req_hdr("content-type") or ""):find("^application/grpc") then
        txn:set_var("txn.weir.grpc_status", "8")
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
