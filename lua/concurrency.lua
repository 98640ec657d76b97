-- Requests in flight: at most CAPACITY slots at once, each held for LEASE unless it is given back or renewed.
--
--   redis-cli --eval <(lua/assemble concurrency.lua) KEY , NOW CAPACITY LEASE NAME COST MODE
--
-- Take one of 10 slots for a minute, under the name `a`, and give it back, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble concurrency.lua) weir:{0}:PerAddress:192.0.2.1#slots , '' 10 60000000 a 1 spend
--   redis-cli --eval <(lua/assemble concurrency.lua) weir:{0}:PerAddress:192.0.2.1#slots , '' 10 60000000 a 1 refund
--
-- NOW, MODE and the reply are those of decide.lua, where the words of a charge are CAPACITY CAPACITY
-- concurrency:LEASE:NAME COST MODE. LEASE is in microseconds. A cost of 0 only asks; any other takes one slot.
--
-- NAME identifies a slot: letters, digits, `_` and `-`. A spend under a name that is held renews the slot and takes no other,
-- and a refund gives it back. With an empty NAME nothing is taken or given back: a caller that cannot give a slot back only
-- learns whether one is free.
--
-- `retry` is a second if no slot is free, since one may come free at any moment. `reset` is 0 if all are free, and otherwise
-- -1, not known.
--
-- A bucket is a sorted set of the names, each with the instant at which its lease ends. The key expires with the last.

--[[ include prelude.lua ]]
local algorithm = {}

-- Shared

local RETRY = 1000000
local LAST = EXACT - 1

-- A lease, in microseconds, and a name or nothing.
function algorithm.parse(text)
  local lease, name = match(text, '^(%d+):([%w_-]*)$')
  lease = tonumber(lease)
  if lease and lease > 0 and lease <= LAST then
    return { lease = lease, name = name ~= '' and name or nil }
  end
end

-- The number of slots that are held, and whether this one is; or nil and an error.
local function found(key, name)
  local held = pcall('ZCOUNT', key, '(' .. format(INTEGER, now), '+inf')
  if type(held) == 'table' then
    if not discarded(key, held) then
      return nil, held
    end
    held = 0
  end
  local last = held > 0 and name and call('ZSCORE', key, name)
  return held, last and tonumber(last) > now
end

function algorithm.decide(key, charge)
  local capacity, mode, name = charge.burst, charge.mode, charge.parameters.name
  local held, is_held = found(key, name)
  if not held then
    return nil, is_held
  end
  local function answer(outcome, held, retry, change)
    return outcome, max(capacity - held, 0), retry, held == 0 and 0 or -1, change
  end
  if mode == 'reset' then
    return answer(ALLOWED, 0, 0, { free_all = true })
  elseif mode == 'refund' then
    if is_held and charge.cost > 0 then
      return answer(ALLOWED, held - 1, 0, { free = name })
    end
    return answer(UNCHANGED, held, 0)
  elseif charge.cost == 0 then
    return answer(ALLOWED, held, 0)
  end
  local after = is_held and held or held + 1
  if after > capacity and not is_held then
    local outcome, retry = charge.short, RETRY
    if mode == 'spend_up_to' then
      outcome, retry = UNCHANGED, 0
    end
    -- A living process renews its lease by the clock as it is. The lease of a dead one must not last longer because the
    -- clock stepped back.
    local latest = min(now + charge.parameters.lease, LAST)
    local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')
    if tonumber(last[2] or 0) > latest + MOST_AHEAD then
      local remaining, reset
      outcome, remaining, retry, reset = answer(outcome, held, retry)
      return outcome, remaining, retry, reset, { latest = latest }, nil, true
    end
    return answer(outcome, held, retry)
  end
  local is_last = after >= capacity and mode ~= 'spend_up_to'
  return answer(ALLOWED, after, is_last and RETRY or 0, mode ~= 'check' and name and { hold = name } or nil)
end

function algorithm.standing(key, charge)
  local held = found(key)
  return max(charge.burst - held, 0), held == 0 and 0 or -1
end

function algorithm.commit(key, charge, change)
  if change.free_all then
    call('DEL', key)
    return nil
  end
  call('ZREMRANGEBYSCORE', key, '-inf', format(INTEGER, now))
  if change.latest then
    local ahead = '(' .. format(INTEGER, change.latest + MOST_AHEAD)
    for _, name in ipairs(call('ZRANGEBYSCORE', key, ahead, '+inf')) do
      call('ZADD', key, format(INTEGER, change.latest), name)
    end
  elseif change.free then
    call('ZREM', key, change.free)
  else
    local added = pcall('ZADD', key, format(INTEGER, min(now + charge.parameters.lease, LAST)), change.hold)
    if type(added) == 'table' then
      return added
    end
  end
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last[2] then
    call('PEXPIRE', key, kept_for(tonumber(last[2]) - now, 0))
  end
end

-- Alone

local USAGE = 'KEY , NOW CAPACITY LEASE NAME COST MODE'
local arguments = {
  ARGV[1], '0', ARGV[2] or '', ARGV[2] or '', 'concurrency:' .. (ARGV[3] or '') .. ':' .. (ARGV[4] or ''), ARGV[5], ARGV[6],
}
made.concurrency = algorithm
--[[ include requests.lua ]]
