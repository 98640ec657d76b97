-- Fixed windows: COUNT tokens with each window, up to BURST. All charges of one call are decided together, all or nothing.
--
--   redis-cli --eval <(lua/assemble fixed_window.lua) KEY [KEY ...] , NOW EFFECTIVE_FROM  BURST COUNT WINDOW COST MODE  [BURST ...]
--
-- Spend 1 of 100 per minute of the clock, by the server's time (an empty NOW):
--   redis-cli --eval <(lua/assemble fixed_window.lua) weir:{0}:PerAddress:192.0.2.1 , '' 0  100 100 clock:60000000 1 spend
--
-- The arguments and the reply are those of decide.lua, with
--   BURST   the capacity, in tokens
--   COUNT   the tokens that each window adds, up to BURST
--   WINDOW  first:PERIOD  windows of PERIOD microseconds, the first of which begins with the first charge that finds the
--                         bucket full
--           clock:PERIOD  windows that begin at the multiples of PERIOD since the Unix epoch
--           NAME:NUMBER:START,START,...
--                         windows of a calendar, which the server does not know: the instants at which consecutive windows
--                         begin, and the number that the caller gives the first of them. As many as fill a bucket must end
--                         before the caller's time, and one more than that must begin after it: then the server's clock may
--                         be a window off. If it is further off the charge is answered with an error.
-- `reset` is the time until the window ends: 0 for a full bucket of `first`, whose window has not begun.
--
-- A bucket is that of levels.lua, "<start> <used> <count> <window>": the tokens used in the window that began at <start>. The
-- window of a calendar is "<name>:<number>:<length>": later ones count as equally long, should the bucket be charged under
-- other numbers. A key expires when its bucket is full.
--
-- Numbers are doubles. BURST, COUNT, the time until an empty bucket is full and all times must be below 2^53, below which
-- doubles hold every integer.

--[[ include prelude.lua ]]
--[[ include levels.lua ]]
local algorithm = {}

-- Shared

-- A WINDOW, of an argument or of a bucket; nothing if it is invalid.
function algorithm.parse(text)
  local kind, numbers = match(text, '^([%w/_+-]+):([%d:,]+)$')
  if kind == 'first' or kind == 'clock' then
    local period = tonumber(numbers)
    if period and period > 0 and period < EXACT then
      return { kind = kind, period = period }
    end
  elseif kind then
    local number, times = match(numbers, '^(%d+):(%d[%d,]*)$')
    if number then
      local window = { kind = kind, number = tonumber(number), starts = {} }
      for start in string.gmatch(times, '%d+') do
        window.starts[#window.starts + 1] = tonumber(start)
      end
      -- Of a bucket, the only number is the window's length.
      window.period = max(window.starts[1], 1)
      return window
    end
  end
end

-- The most tokens that are used or booked ahead of a charge. No window of a calendar is shorter than a delay.
local function most_of(charge)
  local window, ahead = charge.parameters, 1
  if not charge.delay then
    return charge.burst
  elseif not window.starts then
    ahead = ceil(charge.delay / window.period)
  end
  return charge.burst + ahead * charge.count
end

-- The number of the window that holds `at`. Windows of `first` are counted from `anchor`, where one begins. levels.lua says why
-- floor and ceil are exact.
local function number(window, anchor, at)
  if window.kind == 'first' then
    return floor((at - anchor) / window.period)
  elseif window.kind == 'clock' then
    return floor(at / window.period)
  end
  local place = #window.starts
  while place > 0 and window.starts[place] > at do
    place = place - 1
  end
  -- Anything before the first of them is so long ago that the bucket is full.
  return window.number + place - 1
end

-- The beginning of the window with this number.
local function start(window, anchor, numbered)
  if window.kind == 'first' then
    return anchor + numbered * window.period
  elseif window.kind == 'clock' then
    return numbered * window.period
  end
  return window.starts[numbered - window.number + 1]
end

-- The level at `at` of a bucket with `used` tokens at `from`, in a window that began at `anchor`; and the window that holds
-- `at`. The third result is an error: the charge's calendar does not reach as far as the clock.
local function found(charge, used, anchor, from, at)
  local window, most = charge.parameters, most_of(charge)
  local last = number(window, anchor, at)
  if window.starts then
    local place, fill = last - window.number + 1, ceil(most / charge.count)
    if place < 1 or place + fill > #window.starts or (place < fill and window.number > 0) then
      return 0, nil, 'ERR the clock is not within the windows of ' .. window.kind .. ' that were given'
    end
  end
  local passed = last - (from and number(window, anchor, from) or last)
  local bounded = min(used, most)
  -- Tokens beyond that are over with the window. Until then they can be given back.
  local excess = passed == 0 and used - bounded or 0
  used = max(bounded - passed * charge.count, 0)
  local begun = used == 0 and window.kind == 'first' and at or start(window, anchor, last)
  return used, { at = at, number = last, start = begun, excess = excess }
end

-- True if a bucket was written under the numbers of a charge.
local function same(written, charge)
  local old, new = written.parameters, charge.parameters
  return written.algorithm == algorithm and written.count == charge.count and old.kind == new.kind
    and (new.starts ~= nil or old.period == new.period)
end

-- Microseconds until the window begins that is `ahead` windows after that of `position`.
local function ahead_of(charge, position, ahead)
  local window = charge.parameters
  if window.starts then
    return window.starts[position.number - window.number + 1 + ahead] - position.at
  end
  return ahead * window.period - (position.at - position.start)
end

function algorithm.wait(charge, position, levels)
  return levels > 0 and ahead_of(charge, position, ceil(levels / charge.count)) or 0
end

function algorithm.carried(bucket, changed)
  local window, since = bucket.written.parameters, bucket.since
  -- Of a calendar the bucket knows one window.
  local plain = window.kind == 'clock' and window or { kind = 'first', period = window.period }
  local last = number(plain, since, changed)
  -- A product beyond 2^53 may be rounded, but is more than the level either way.
  local used = bucket.level - (last - number(plain, since, since)) * bucket.written.count
  return max(used, 0), start(plain, since, last)
end

-- Of a calendar the bucket knows one window.
function algorithm.span(bucket)
  return ceil(bucket.level / bucket.written.count) * bucket.written.parameters.period
end

-- The numbers that a bucket is written under.
local function written_by(charge, position)
  local window = charge.parameters
  if not window.starts then
    return charge
  end
  local place = position.number - window.number + 1
  local length = window.starts[place + 1] - window.starts[place]
  local kept = { kind = window.kind, number = position.number, period = length, starts = { length } }
  local text = format('%s %s:%d:' .. INTEGER, match(charge.numbers, '^%d+'), window.kind, kept.number, length)
  return { numbers = text, count = charge.count, parameters = kept, algorithm = algorithm }
end

-- The level as the charge finds it, and the window that holds now, or an error.
local function level_now(key, bucket, charge)
  local level, written, instant = bucket.level, bucket.written, max(now, bucket.since)
  bucket.full_in = nil
  if level == 0 then
    return found(charge, 0, now, now, instant)
  elseif not same(written, charge) then
    bucket.full_in = rare().full_in(bucket, charge.from)
    if bucket.full_in and bucket.full_in <= 0 then
      bucket.full_in = nil
      return found(charge, 0, now, now, now)
    end
    local used, token, changed, anchor = rare().carried(bucket, charge.from, now)
    local left, position, failure = found(charge, ceil(used / token), anchor, changed, instant)
    if position and not bucket.full_in then
      rare().outlive(key, algorithm.wait(charge, position, left))
    end
    return left, position, failure
  elseif not written.parameters.starts then
    return found(charge, level, bucket.since, bucket.since, instant)
  end
  local _, position, failure = found(charge, 0, bucket.since, nil, instant)
  if failure then
    return 0, nil, failure
  end
  -- The bucket's own number counts if its window is further back than those of the charge. After a step back of the
  -- clock that number is too high, and the bucket's date counts.
  local begun = min(written.parameters.number, number(charge.parameters, nil, bucket.since))
  local passed, bounded = max(position.number - begun, 0), min(level, most_of(charge))
  position.excess = passed == 0 and level - bounded or 0
  return max(bounded - passed * charge.count, 0), position
end

-- Microseconds until the window ends.
local function reset(charge, position, level)
  if level == 0 and charge.parameters.kind == 'first' then
    return 0
  end
  return ahead_of(charge, position, 1)
end

function algorithm.decide(key, charge)
  local bucket = bucket_of(key, charge)
  if bucket.failure then
    return nil, bucket.failure
  end
  local level, position, failure = level_now(key, bucket, charge)
  if failure then
    return nil, redis.error_reply(failure)
  end
  local least = 0
  if bucket.leased then
    -- All of it until the leases end; from then on it counts in the window in which that was.
    local window, start, last = charge.parameters, position.start, bucket.lease_end
    local passed = last > now and 0 or max(number(window, start, start) - number(window, start, last - 1), 0)
    least = max(min(bucket.leased, charge.burst) - passed * charge.count, 0)
    level = max(level, least)
  end
  bucket.found, bucket.position = level, position
  local held = bucket.holds and bucket.holds.held or 0
  local outcome, after, retry, change, details
  if charge.lease then
    local window_end = position.at + ahead_of(charge, position, 1)
    outcome, after, retry, change, details =
      leasing().decided(bucket, charge, 1, level, same(bucket.written, charge), position, window_end)
  elseif charge.hold or bucket.holds then
    outcome, after, retry, change, held = holding().decided(bucket, charge, 1, level, position, least)
  else
    outcome, after, retry, change = decided(charge, 1, level, position, least)
  end
  if charge.told and change and not details then
    -- A negative outcome is the time until a charge counts that was booked ahead.
    details = { 'taken', position.at - outcome }
  end
  local ends = reset(charge, position, after)
  if bucket.full_in and not change then
    retry, ends = full_after(bucket.full_in, charge, outcome, retry, ends, held)
  end
  return outcome, max(charge.burst - held - after, 0), retry, ends, change, details
end

function algorithm.standing(key, charge)
  local bucket = buckets[key]
  local ends = reset(charge, bucket.position, bucket.found)
  if bucket.full_in then
    ends = min(ends, bucket.full_in)
  end
  return max(charge.burst - (bucket.holds and bucket.holds.held or 0) - bucket.found, 0), ends
end

function algorithm.commit(key, charge, level)
  local bucket = buckets[key]
  local position = bucket.position
  level = charge.hold and holding().commit(bucket, charge, level) or level
  if level == 0 then
    keep(key, bucket, 0, charge, now, 0)
  else
    local full = algorithm.wait(charge, position, min(level, most_of(charge))) + position.at - now
    local written = written_by(charge, position)
    -- Of a calendar the bucket knows one window, and counts as full when so many of them are over.
    full = max(full, ceil(level / written.count) * written.parameters.period - (now - position.start))
    keep(key, bucket, level, written, position.start, full)
  end
  if charge.lease then
    leasing().commit(bucket)
  end
end

algorithm.finish = finish

-- Alone

local USAGE = 'KEY [KEY ...] , NOW EFFECTIVE_FROM, and BURST COUNT WINDOW COST MODE for each KEY'
local arguments = ARGV
made.fixed_window = algorithm
--[[ include requests.lua ]]
