-- The sliding window: COUNT tokens in any PERIOD, from two counts. The tokens of the previous clock window count by the share of
-- it that the last PERIOD still covers.
--
--   redis-cli --eval <(lua/assemble sliding_window.lua) KEY , NOW EFFECTIVE_FROM COUNT WINDOW COST MODE
--
-- Spend 1 of 100 in any minute, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble sliding_window.lua) weir:{0}:PerAddress:192.0.2.1#sliding , '' 0 100 60000000:1 1 spend
--
-- NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua, where the words of a charge are COUNT COUNT
-- sliding_window:WINDOW COST MODE. `reset` is the time until nothing counts.
--   WINDOW  PERIOD:TICK               windows of PERIOD microseconds begin at its multiples since the Unix epoch, and the
--                                     share falls every TICK microseconds
--           PERIOD:TICK:count_denied  denied charges count as well, up to twice the COUNT in a window
-- Twice the COUNT times PERIOD / TICK, rounded up, must be below 2^53, and so must twice the PERIOD.
--
-- A bucket is a string "<at> <previous> <current> <period> <tick>": when it was written, the tokens of the previous window and
-- of the one that holds <at>, and the numbers it was written under. A key expires when nothing counts.

--[[ include prelude.lua ]]
local algorithm = {}

-- Shared

local COUNTS = INTEGER .. ' ' .. INTEGER .. ' ' .. INTEGER .. ' '
-- The bucket of each key that was read, so that a call reads it once; false if it does not exist.
local kept = {}

-- WINDOW: the period, the tick, the number of ticks, whether denied charges count, and the text of both in a bucket.
function algorithm.parse(text)
  local period, tick, denied = match(text, '^(%d+):(%d+)(:?[%l_]*)$')
  local written = period and period .. ' ' .. tick
  period, tick = tonumber(period), tonumber(tick)
  if period and period > 0 and 2 * period < EXACT and tick > 0 and tick <= period
    and (denied == '' or denied == ':count_denied') then
    return { period = period, tick = tick, ticks = ceil(period / tick), denied = denied ~= '', written = written }
  end
end

-- The part of the previous window's tokens that counts at an instant. Below 2^53 the double nearest to a quotient of integers
-- is a whole number only if the quotient is one, so floor, ceil and % are exact.
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

-- A bucket as it is kept: a table, false if it does not exist, or nil and an error. It was most likely written under the numbers of
-- the charge, which then need not be parsed again.
local function read(key, charge)
  if kept[key] ~= nil then
    return kept[key]
  end
  local text = pcall('GET', key)
  if type(text) == 'table' then
    if not discarded(key, text) then
      return nil, text
    end
    text = nil
  end
  local at, previous, current, window = match(text or '', '^(%d+) (%d+) (%d+) (%d+ %d+)$')
  at, previous, current = tonumber(at), tonumber(previous), tonumber(current)
  local frame = charge.parameters
  if window ~= frame.written then
    frame = window and algorithm.parse((string.gsub(window, ' ', ':')))
  end
  kept[key] = false
  if frame and at < EXACT and previous < EXACT and current < EXACT then
    if at > now + MOST_AHEAD then
      -- The tokens of this window count in the current one. The key expires later than needed.
      at = now
      local dated = pcall('SET', key, format(COUNTS, at, previous, current) .. frame.written, 'KEEPTTL')
      if type(dated) == 'table' and dated.err then
        return nil, dated
      end
    end
    kept[key] = { at = at, previous = previous, current = current, frame = frame }
  elseif text then
    corrupt = corrupt + 1
  end
  return kept[key]
end

-- Microseconds until nothing counts.
local function reset(bucket)
  local period = bucket.frame.period
  if bucket.previous + bucket.current == 0 then
    return 0
  end
  return period - bucket.at % period + (bucket.current > 0 and period or 0)
end

-- The bucket as a charge finds it, or nil and an error. A clock that stepped back stands still. Under another period, the tokens
-- that counted when the numbers changed count from there on as taken in that instant.
local function found(key, charge)
  local bucket, failure = read(key, charge)
  if failure then
    return nil, failure
  end
  local frame = charge.parameters
  local most = frame.denied and 2 * charge.burst or charge.burst
  local here = { at = now, previous = 0, current = 0, frame = frame, most = most }
  if bucket and bucket.frame.period ~= frame.period and not follow_a_change(charge.from, bucket.at) then
    -- It counts as full when it is so by the numbers of the last write: its key may be gone then.
    local wait = reset(bucket) - (max(now, bucket.at) - bucket.at)
    if wait <= 0 then
      bucket = nil
    else
      here.full_in = wait
    end
  end
  if bucket then
    local from, held = charge.from, most
    if bucket.at > from then
      -- What was written since these numbers took effect and is more is of a gateway with other rules, perhaps newer ones.
      -- The bound is the most tokens for which a share can be computed.
      held = floor((EXACT - 1) / frame.ticks)
    end
    here.at = max(bucket.at, now)
    if bucket.frame.period ~= frame.period then
      local changed = changed_at(bucket.at, from, here.at)
      local previous, current = moved(bucket, changed)
      current = current + share(previous, changed, bucket.frame)
      bucket = { at = changed, previous = 0, current = current, frame = frame }
      here.is_carried = not here.full_in
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

-- Keeps a key that was written under another period for as long as this one needs.
local function outlive(key, bucket)
  local left = not given and pcall('PTTL', key) or -1
  if type(left) == 'number' and left >= 0 and left < ceil((reset(bucket) + bucket.at - now) / 1000) then
    pcall('PEXPIRE', key, kept_for(reset(bucket) + bucket.at - now))
  end
end

local function with(bucket, previous, current)
  return { at = bucket.at, previous = previous, current = current, frame = bucket.frame }
end

-- The tokens that a refund takes from the previous window and from this one: from the one in which they were taken or, if that is
-- not known, from this one first.
local function given_back(here, charge)
  local cost, period = charge.cost, here.frame.period
  if not charge.taken then
    local current = min(cost, here.current)
    return min(cost - current, here.previous), current
  end
  local back = floor(here.at / period) - floor(min(charge.taken, here.at) / period)
  return back == 1 and min(cost, here.previous) or 0, back == 0 and min(cost, here.current) or 0
end

-- As `algorithm.decide`, but that the bucket may be full earlier.
local function decided(here, charge, key)
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
    return charge.short, remaining(after, count), retry, reset(after),
      after.current > here.current and after or nil, nil, counts
  end
  local taken = min(cost, room)
  if taken == 0 or charge.look then
    return (cost == 0 or charge.look) and ALLOWED or UNCHANGED, room, 0, reset(here)
  end
  local after = with(here, here.previous, here.current + taken)
  local retry = mode == 'spend_up_to' and 0 or time_for(after, taken, count)
  return ALLOWED, room - taken, retry, reset(after), mode ~= 'check' and after or nil,
    charge.told and { 'taken', here.at } or nil,
    counts and (mode == 'spend' or mode == 'spend_only')
end

function algorithm.decide(key, charge)
  local here, failure = found(key, charge)
  if not here then
    return nil, failure
  end
  local outcome, room, retry, ends, change, detail, counts = decided(here, charge, key)
  if here.full_in and not change then
    retry, ends = full_after(here.full_in, charge, outcome, retry, ends)
  end
  return outcome, room, retry, ends, change, detail, counts
end

function algorithm.standing(key, charge)
  local here = found(key, charge)
  local room, cost, mode = remaining(here, charge.burst), charge.cost, charge.mode
  local detail
  if charge.parameters.denied and cost > room and (mode == 'spend' or mode == 'spend_only') then
    -- It has counted the request, which another limit has denied.
    detail = { 'counted', time_for(here, cost, charge.burst) }
  end
  local ends = here.full_in and min(reset(here), here.full_in) or reset(here)
  return room, ends, detail
end

function algorithm.commit(key, charge, after)
  local done
  if after.previous + after.current == 0 then
    done, after = pcall('DEL', key), false
  else
    local text = format(COUNTS, after.at, after.previous, after.current) .. after.frame.written
    done = pcall('SET', key, text, 'PX', kept_for(reset(after) + after.at - now))
  end
  if type(done) == 'table' and done.err then
    return done
  end
  kept[key] = after
end

-- Alone

local USAGE = 'KEY , NOW EFFECTIVE_FROM COUNT WINDOW COST MODE'
local arguments = { ARGV[1], ARGV[2], ARGV[3] or '', ARGV[3] or '', 'sliding_window:' .. (ARGV[4] or ''), ARGV[5], ARGV[6] }
made.sliding_window = algorithm
--[[ include requests.lua ]]
