-- The sliding window: COUNT tokens in any PERIOD, by two counts. What was taken in the window of the clock before this one
-- counts by the share of it that the last PERIOD still covers.
--
--   redis-cli --eval lua/sliding_window.lua KEY , NOW EFFECTIVE_FROM COUNT WINDOW COST MODE
--
-- Spend 1 of 100 in any minute, by the server's clock (an empty NOW):
--   redis-cli --eval lua/sliding_window.lua weir:{0}:PerAddress:192.0.2.1#sliding , '' 0 100 60000000:1 1 spend
--
-- NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua, where the words of a charge are COUNT COUNT
-- sliding_window:WINDOW COST MODE. `reset` is the time until nothing counts any more.
--   WINDOW  PERIOD:TICK               windows of PERIOD microseconds begin at its multiples since the Unix epoch, and the
--                                     share falls every TICK microseconds
--           PERIOD:TICK:count_denied  what is refused counts as well, up to twice the COUNT in a window
-- Twice the COUNT times PERIOD / TICK, rounded up, must be below 2^53, and so must twice the PERIOD.
--
-- A bucket is a string "<at> <previous> <current> <period> <tick>": when it was written, the tokens of the window before
-- and those of the window that holds <at>, and what it was written under. A key expires when nothing counts any more.

-- Shared

local function sliding_window(now, given)
  local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
  local format, match, tonumber, type = string.format, string.match, tonumber, type
  local pcall = redis.pcall
  local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
  -- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
  local GIVEN_CLOCK_EXPIRY = 600000
  local EXACT = 9007199254740992
  -- tostring() keeps 14 digits of a number, and a time has 16. '%d' takes a fifth of the time of '%.0f', and is as exact
  -- wherever C's long has 64 bits.
  local INTEGER = format('%d', EXACT - 1) == '9007199254740991' and '%d' or '%.0f'
  -- As in decide.lua: how long a key outlives its bucket, and how far ahead of the clock one may be dated.
  local RETENTION, MOST_AHEAD = 60000000, 1000000
  local COUNTS = INTEGER .. ' ' .. INTEGER .. ' ' .. INTEGER .. ' '
  -- `corrupt` counts the keys whose text was no bucket; `kept` has what each key holds, so that a call reads it once.
  local sliding, kept = { corrupt = 0 }, {}

  -- What stands in WINDOW: the period, the tick, how many of them there are, whether what is refused counts, and how a
  -- bucket says it.
  function sliding.parsed(text)
    local period, tick, denied = match(text, '^(%d+):(%d+)(:?[%l_]*)$')
    local written = period and period .. ' ' .. tick
    period, tick = tonumber(period), tonumber(tick)
    if period and period > 0 and 2 * period < EXACT and tick > 0 and tick <= period
      and (denied == '' or denied == ':count_denied') then
      return { period = period, tick = tick, ticks = ceil(period / tick), denied = denied ~= '', written = written }
    end
  end

  -- What counts at an instant of so many tokens of the window before. Below 2^53 the double nearest to a quotient of
  -- integers is a whole number only if the quotient is one, so floor and ceil are exact, and % is.
  local function share(tokens, at, frame)
    return ceil(tokens * (frame.ticks - floor(at % frame.period / frame.tick)) / frame.ticks)
  end

  -- The two counts of a bucket at an instant that is not before it.
  local function moved(bucket, at)
    local passed = floor(at / bucket.frame.period) - floor(bucket.at / bucket.frame.period)
    if passed == 0 then
      return bucket.previous, bucket.current
    end
    return passed == 1 and bucket.current or 0, 0
  end

  -- What there is of a bucket: a table, false if there is none, or nil and an error. It was most likely written under what
  -- the charge says, which then need not be read again.
  local function read(key, charge)
    if kept[key] ~= nil then
      return kept[key]
    end
    local text = pcall('GET', key)
    if type(text) == 'table' then
      return nil, text
    end
    local at, previous, current, window = match(text or '', '^(%d+) (%d+) (%d+) (%d+ %d+)$')
    at, previous, current = tonumber(at), tonumber(previous), tonumber(current)
    local frame = charge.parameters
    if window ~= frame.written then
      frame = window and sliding.parsed((string.gsub(window, ' ', ':')))
    end
    kept[key] = false
    if frame and at < EXACT and previous < EXACT and current < EXACT then
      if at > now + MOST_AHEAD then
        -- What this window has taken counts in the one that is under way. The key expires later than it need.
        at = now
        local dated = pcall('SET', key, format(COUNTS, at, previous, current) .. frame.written, 'KEEPTTL')
        if type(dated) == 'table' and dated.err then
          return nil, dated
        end
      end
      kept[key] = { at = at, previous = previous, current = current, frame = frame }
    elseif text then
      sliding.corrupt = sliding.corrupt + 1
    end
    return kept[key]
  end

  -- The bucket as a charge finds it, or nil and an error. A clock that stepped back stands still. Under another period
  -- what counted when the numbers changed counts from there on as taken in that instant.
  local function found(key, charge)
    local bucket, failure = read(key, charge)
    if failure then
      return nil, failure
    end
    local frame = charge.parameters
    local most = frame.denied and 2 * charge.burst or charge.burst
    local here = { at = now, previous = 0, current = 0, frame = frame, most = most }
    if bucket then
      local from, held = charge.from, most
      if bucket.at > from then
        -- What was written since these numbers took effect, and is more, is of a gateway with other rules, newer ones
        -- perhaps. As many as shares can be counted of.
        held = floor((EXACT - 1) / frame.ticks)
      end
      here.at = max(bucket.at, now)
      if bucket.frame.period ~= frame.period then
        local changed = min(max(from, bucket.at), here.at)
        local previous, current = moved(bucket, changed)
        current = current + share(previous, changed, bucket.frame)
        bucket = { at = changed, previous = 0, current = current, frame = frame }
        here.is_carried = true
      end
      here.previous, here.current = moved(bucket, here.at)
      here.previous, here.current = min(here.previous, held), min(here.current, held)
    end
    return here
  end

  local function used(bucket)
    return bucket.current + share(bucket.previous, bucket.at, bucket.frame)
  end

  local function remaining(bucket, count)
    return max(count - used(bucket), 0)
  end

  -- Microseconds until `cost` fits into `count`, which is no less.
  local function time_for(bucket, cost, count)
    local frame = bucket.frame
    local room, tokens, before = count - cost - bucket.current, bucket.previous, 0
    if room >= 0 and share(tokens, bucket.at, frame) <= room then
      return 0
    elseif room < 0 then
      room, tokens, before = count - cost, bucket.current, frame.period
    end
    local ticks = frame.ticks - floor(room * frame.ticks / tokens)
    -- The end of the window ends the last tick. An instant and a period may be more than 2^53 together.
    return before - bucket.at % frame.period + min(ticks * frame.tick, frame.period)
  end

  -- Microseconds until nothing counts any more.
  local function reset(bucket)
    local period = bucket.frame.period
    if bucket.previous + bucket.current == 0 then
      return 0
    end
    return period - bucket.at % period + (bucket.current > 0 and period or 0)
  end

  -- The milliseconds for which a key is kept.
  local function kept_for(bucket)
    local full = reset(bucket) + bucket.at - now
    return format(INTEGER, max(1, ceil((full + min(full, RETENTION)) / 1000)))
  end

  -- Keeps a key that was written under another period for as long as this one needs.
  local function outlive(key, bucket)
    local left = not given and pcall('PTTL', key) or -1
    if type(left) == 'number' and left >= 0 and left < ceil((reset(bucket) + bucket.at - now) / 1000) then
      pcall('PEXPIRE', key, kept_for(bucket))
    end
  end

  local function with(bucket, previous, current)
    return { at = bucket.at, previous = previous, current = current, frame = bucket.frame }
  end

  -- What a refund takes from the window before and from this one: from this one first, unless what is given back was taken in
  -- the one before. What was taken earlier counts no longer.
  local function given_back(here, charge)
    local cost, period = charge.cost, here.frame.period
    local back = floor(here.at / period) - floor(min(charge.taken or here.at, here.at) / period)
    if back == 0 then
      local current = min(cost, here.current)
      return min(cost - current, here.previous), current
    elseif back == 1 then
      local previous = min(cost, here.previous)
      return previous, min(cost - previous, here.current)
    end
    return 0, 0
  end

  function sliding.decide(key, charge)
    local here, failure = found(key, charge)
    if not here then
      return nil, failure
    end
    if here.is_carried then
      outlive(key, here)
    end
    local count, cost, mode, counts = charge.burst, charge.cost, charge.mode, charge.parameters.denied
    local room = remaining(here, count)
    if mode == 'reset' then
      return ALLOWED, count, 0, 0, with(here, 0, 0)
    elseif mode == 'refund' then
      local previous, current = given_back(here, charge)
      local after = with(here, here.previous - previous, here.current - current)
      local given_back = current + previous > 0
      return given_back and ALLOWED or UNCHANGED, remaining(after, count), 0, reset(after), given_back and after or nil
    elseif mode ~= 'spend_up_to' and cost > room then
      local after = here
      if counts and mode ~= 'check' then
        after = with(here, here.previous, min(here.current + cost, max(here.most, here.current)))
      end
      local retry = cost > count and -1 or time_for(after, cost, count)
      return mode == 'spend_only' and UNCHANGED or DENIED, remaining(after, count), retry, reset(after),
        after.current > here.current and after or nil, nil, counts
    end
    local taken = min(cost, room)
    if taken == 0 then
      return cost == 0 and ALLOWED or UNCHANGED, room, 0, reset(here)
    end
    local after = with(here, here.previous, here.current + taken)
    local retry = mode == 'spend_up_to' and 0 or time_for(after, taken, count)
    return ALLOWED, room - taken, retry, reset(after), mode ~= 'check' and after or nil, nil,
      counts and (mode == 'spend' or mode == 'spend_only')
  end

  function sliding.standing(key, charge)
    local here = found(key, charge)
    return remaining(here, charge.burst), reset(here)
  end

  function sliding.commit(key, charge, after)
    local done
    if after.previous + after.current == 0 then
      done, after = pcall('DEL', key), false
    else
      local expiry = given and GIVEN_CLOCK_EXPIRY or kept_for(after)
      local text = format(COUNTS, after.at, after.previous, after.current) .. after.frame.written
      done = pcall('SET', key, text, 'PX', expiry)
    end
    if type(done) == 'table' and done.err then
      return done
    end
    kept[key] = after
  end

  return sliding
end

-- Alone

local time, given = redis.call('TIME'), ARGV[1] ~= ''
local now = given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local sliding = sliding_window(now, given)
local charge = {
  from = tonumber(ARGV[2]) or 0, burst = tonumber(ARGV[3]), parameters = sliding.parsed(ARGV[4] or ''), cost = tonumber(ARGV[5]), mode = ARGV[6],
}
if #KEYS ~= 1 or not charge.parameters or not charge.mode then
  return redis.error_reply('ERR usage: KEY , NOW EFFECTIVE_FROM COUNT WINDOW COST MODE')
elseif not string.find(' spend check spend_only spend_up_to refund reset ', ' ' .. charge.mode .. ' ', 1, true) then
  return redis.error_reply('ERR unknown mode ' .. charge.mode)
end
local outcome, remaining, retry, reset, change = sliding.decide(KEYS[1], charge)
local failure = not outcome and remaining or change and sliding.commit(KEYS[1], charge, change)
return failure or { sliding.corrupt, outcome, remaining, retry, reset }
