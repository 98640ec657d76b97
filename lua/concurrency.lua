-- Requests in flight: at most CAPACITY slots at once, each held for LEASE unless it is given back or renewed.
--
--   redis-cli --eval lua/concurrency.lua KEY , NOW CAPACITY LEASE NAME COST MODE
--
-- Take one of 10 slots for a minute, under the name `a`, and give it back, by the server's clock (an empty NOW):
--   redis-cli --eval lua/concurrency.lua weir:{0}:PerAddress:192.0.2.1#slots , '' 10 60000000 a 1 spend
--   redis-cli --eval lua/concurrency.lua weir:{0}:PerAddress:192.0.2.1#slots , '' 10 60000000 a 1 refund
--
-- NOW, MODE and the reply are those of decide.lua, where the words of a charge are CAPACITY CAPACITY
-- concurrency:LEASE:NAME COST MODE. LEASE is in microseconds. A cost of 0 asks, and any other takes one slot: a request is
-- in flight or it is not.
--
-- NAME tells slots apart: letters, digits, `_` and `-`. A spend under a name that is held renews the slot and takes no
-- other, and a refund gives it back. With an empty NAME nothing is taken or given back: who cannot give a slot back is
-- told whether there is one.
--
-- `retry` is a second where there is no slot, since one may come free at any moment; `reset` is 0 if all are free, and
-- otherwise -1, as nobody knows.
--
-- A bucket is a sorted set of the names, each with the instant at which its lease ends. The key expires with the last.

-- Shared

local function concurrency(now, given)
  local ceil, max, min = math.ceil, math.max, math.min
  local format, match, tonumber = string.format, string.match, tonumber
  local pcall = redis.pcall
  local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
  local RETRY = 1000000
  -- The last instant that a double can tell from its neighbours.
  local LAST = 9007199254740991
  -- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
  local GIVEN_CLOCK_EXPIRY = 600000
  -- How far ahead of the clock a lease may be dated, in microseconds.
  local MOST_AHEAD = 1000000
  local slots = {}

  -- A lease, in microseconds, and a name or nothing.
  function slots.parsed(text)
    local lease, name = match(text, '^(%d+):([%w_-]*)$')
    lease = tonumber(lease)
    if lease and lease > 0 and lease <= LAST then
      return { lease = lease, name = name ~= '' and name or nil }
    end
  end

  -- How many slots are held, and whether this one is; or nil and an error.
  local function found(key, name)
    local held = pcall('ZCOUNT', key, format('(%.0f', now), '+inf')
    if type(held) == 'table' then
      return nil, held
    end
    local last = held > 0 and name and redis.call('ZSCORE', key, name)
    return held, last and tonumber(last) > now
  end

  function slots.decide(key, charge)
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
      local outcome, retry = (mode == 'spend' or mode == 'check') and DENIED or UNCHANGED, mode == 'spend_up_to' and 0 or RETRY
      -- Who is alive renews its lease by the clock as it is; that of the dead must not outlive a step back of the clock.
      local latest = min(now + charge.parameters.lease, LAST)
      local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
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

  function slots.standing(key, charge)
    local held = found(key)
    return max(charge.burst - held, 0), held == 0 and 0 or -1
  end

  function slots.commit(key, charge, change)
    if change.free_all then
      redis.call('DEL', key)
      return nil
    end
    redis.call('ZREMRANGEBYSCORE', key, '-inf', format('%.0f', now))
    if change.latest then
      local ahead = format('(%.0f', change.latest + MOST_AHEAD)
      for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, ahead, '+inf')) do
        redis.call('ZADD', key, format('%.0f', change.latest), name)
      end
    elseif change.free then
      redis.call('ZREM', key, change.free)
    else
      local added = pcall('ZADD', key, format('%.0f', min(now + charge.parameters.lease, LAST)), change.hold)
      if type(added) == 'table' then
        return added
      end
    end
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    if last[2] then
      local left = ceil((tonumber(last[2]) - now) / 1000)
      redis.call('PEXPIRE', key, given and GIVEN_CLOCK_EXPIRY or format('%.0f', max(1, left)))
    end
  end

  return slots
end

-- Alone

local time, given = redis.call('TIME'), ARGV[1] ~= ''
local slots = concurrency(given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2], given)
local charge = {
  burst = tonumber(ARGV[2]), parameters = slots.parsed((ARGV[3] or '') .. ':' .. (ARGV[4] or '')), cost = tonumber(ARGV[5]),
  mode = ARGV[6],
}
if #KEYS ~= 1 or not charge.burst or not charge.parameters or not charge.cost or not charge.mode then
  return redis.error_reply('ERR usage: KEY , NOW CAPACITY LEASE NAME COST MODE')
end
local outcome, remaining, retry, reset, change = slots.decide(KEYS[1], charge)
local failure = not outcome and remaining or change and slots.commit(KEYS[1], charge, change)
return failure or { 0, outcome, remaining, retry, reset }
