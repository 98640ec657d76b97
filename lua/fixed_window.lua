-- Fixed windows for the charges of one request, all or nothing.
--
--   redis-cli --eval lua/fixed_window.lua KEY [KEY ...] , NOW EFFECTIVE_FROM  BURST COUNT WINDOW COST MODE  [BURST ...]
--
-- Spend 1 of 100 per minute of the clock, by the server's time (an empty NOW):
--   redis-cli --eval lua/fixed_window.lua weir:{0}:PerAddress:192.0.2.1 , '' 0  100 100 clock:60000000 1 spend
--
-- KEYS, NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua; the other words of a key are:
--   BURST   the capacity, in tokens
--   COUNT   the tokens that each window adds, up to BURST
--   WINDOW  first:PERIOD  windows of PERIOD microseconds, the first of which begins with the first charge that finds the
--                         bucket full
--           clock:PERIOD  windows that begin at the multiples of PERIOD since the Unix epoch
--           NAME:NUMBER:START,START,...
--                         those of a calendar, which the server does not know: when some of them begin, one after the
--                         other, and the number that its caller gives the first of these. As many as fill a bucket must
--                         end before the caller's time, and as many and one more begin after it: then the server's clock
--                         may be a window off. If it is further off the charge has an error for its answer.
-- `reset` is the time until the window ends: 0 for a full bucket of `first`, whose window has not begun.
--
-- A bucket is a string "<start> <used> <count> <window>": the tokens used in the window that began at <start>, and what
-- it was written under. The window of a calendar is "<name>:<number>:<length>": those after it count as as long, should
-- the bucket be charged under others. A key is gone when its bucket is full.
--
-- Numbers are doubles. BURST, COUNT, the time that a bucket takes to be full and all times must be below 2^53, below
-- which doubles hold every integer.
--
-- Shared

local function fixed_windows()
  local windows = {}
  local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
  local format, match, tonumber = string.format, string.match, tonumber
  local EXACT = 9007199254740992
  -- tostring() keeps 14 digits of a number, and a time has 16.
  local INTEGER = format('%d', EXACT - 1) == '9007199254740991' and '%d' or '%.0f'

  -- What a WINDOW says, of an argument or of a bucket; nothing if it is none.
  function windows.parsed(text)
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
        -- Of a bucket, the only number is how long the window is.
        window.period = max(window.starts[1], 1)
        return window
      end
    end
  end

  -- The number of the window that holds `at`. For `first` windows are counted from `anchor`, where one begins.
  --
  -- Below 2^53 the double nearest to a quotient of integers is a whole number only if the quotient is one, so floor and
  -- ceil are exact.
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
    -- What is before the first of them is so long ago that the bucket is full.
    return window.number + place - 1
  end

  -- When the window of a number begins.
  local function start(window, anchor, numbered)
    if window.kind == 'first' then
      return anchor + numbered * window.period
    elseif window.kind == 'clock' then
      return numbered * window.period
    end
    return window.starts[numbered - window.number + 1]
  end

  -- The windows that add up to the burst.
  local function windows_to_fill(charge)
    return ceil(charge.burst / charge.count)
  end

  -- What is left at `changed` by the numbers that a bucket was written under, and when the window began that was under
  -- way.
  function windows.carried(bucket, changed)
    local window, since = bucket.written.window, bucket.since
    -- Of a calendar the bucket knows one window.
    local plain = window.kind == 'clock' and window or { kind = 'first', period = window.period }
    local last = number(plain, since, changed)
    -- A product beyond 2^53 may be rounded, but is more than the level either way.
    local used = bucket.level - (last - number(plain, since, since)) * bucket.written.count
    return max(used, 0), start(plain, since, last)
  end

  -- What is used at `now` of a bucket of which `used` were at `from`, in a window that began at `anchor`; and the window
  -- that this is in. The third result is an error: the calendar of the charge does not reach as far as the clock.
  local function found(charge, used, anchor, from, now)
    local window = charge.window
    local last = number(window, anchor, now)
    if window.starts then
      local place, fill = last - window.number + 1, windows_to_fill(charge)
      if place < 1 or place + fill > #window.starts or (place < fill and window.number > 0) then
        return 0, nil, 'ERR the clock is not within the windows of ' .. window.kind .. ' that were given'
      end
    end
    local passed = last - (from and number(window, anchor, from) or last)
    local bounded = min(used, charge.burst)
    -- What a bucket cannot hold is over with the window. Until then it is there to be given back.
    local excess = passed == 0 and used - bounded or 0
    used = max(bounded - passed * charge.count, 0)
    local begun = used == 0 and window.kind == 'first' and now or start(window, anchor, last)
    return used, { at = now, number = last, start = begun, excess = excess }
  end

  -- What is used now of a bucket that was written under the numbers of the charge, or under none.
  function windows.unchanged(bucket, charge, now)
    now = max(now, bucket.since)
    local written = bucket.written.window
    if written.starts then
      -- By the bucket's own number: its window may be further back than those of the charge.
      local _, position, failure = found(charge, 0, bucket.since, nil, now)
      if failure then
        return 0, nil, failure
      end
      local passed, bounded = max(position.number - written.number, 0), min(bucket.level, charge.burst)
      position.excess = passed == 0 and bucket.level - bounded or 0
      return max(bounded - passed * charge.count, 0), position
    end
    return found(charge, bucket.level, bucket.since, bucket.since, now)
  end

  -- What is used now of a bucket of which `used` tokens were left when the numbers of the charge took effect.
  function windows.changed(bucket, charge, used, anchor, changed, now)
    return found(charge, used, anchor, changed, max(now, bucket.since))
  end

  -- Whether what a bucket was written under are the numbers of a charge.
  function windows.same(written, charge)
    local old, new = written.window, charge.window
    return old ~= nil and written.count == charge.count and old.kind == new.kind
      and (new.starts ~= nil or old.period == new.period)
  end

  -- Microseconds until the window begins that is `ahead` windows after that of `position`.
  local function ahead_of(charge, position, ahead)
    local window = charge.window
    if window.starts then
      return window.starts[position.number - window.number + 1 + ahead] - position.at
    end
    return ahead * window.period - (position.at - position.start)
  end

  -- Microseconds until `levels` have come back.
  function windows.time_for(charge, position, levels)
    return levels > 0 and ahead_of(charge, position, ceil(levels / charge.count)) or 0
  end

  -- Microseconds until the window ends.
  function windows.reset(charge, position, level)
    if level == 0 and charge.window.kind == 'first' then
      return 0
    end
    return ahead_of(charge, position, 1)
  end

  -- What a bucket was written under that was dated ahead of the clock, from `now` on.
  function windows.redated(written, charge, now)
    local old, new = written.window, charge.window
    if not (new and new.starts and windows.same(written, charge)) then
      return written
    end
    local numbered = number(new, now, now)
    local place = numbered - new.number + 1
    if place < 1 or not new.starts[place + 1] then
      return written
    end
    return windows.written(charge, { number = numbered })
  end

  -- The numbers that a bucket is written under.
  function windows.written(charge, position)
    local window = charge.window
    if not window.starts then
      return charge
    end
    local place = position.number - window.number + 1
    local length = window.starts[place + 1] - window.starts[place]
    local kept = { kind = window.kind, number = position.number, period = length, starts = { length } }
    local text = format('%s %s:%d:' .. INTEGER, match(charge.numbers, '^%d+'), window.kind, kept.number, length)
    return { numbers = text, token = 1, count = charge.count, window = kept }
  end

  return windows
end

-- Alone

-- A bucket of another kind than these counts as one that cannot be read.
local windows = fixed_windows()
local ceil, max, min = math.ceil, math.max, math.min
local format, match, tonumber = string.format, string.match, tonumber

local EXACT = 9007199254740992
local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
local MODES = { spend = true, check = true, spend_only = true, spend_up_to = true, refund = true, reset = true }
-- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
local GIVEN_CLOCK_EXPIRY = 600000

if #KEYS == 0 or #ARGV ~= 2 + 5 * #KEYS then
  return redis.error_reply(
    'ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM, and BURST COUNT WINDOW COST MODE for each KEY')
end
local given, now = ARGV[1] ~= '', tonumber(ARGV[1])
if not given then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local effective_from = tonumber(ARGV[2])

-- What COUNT and WINDOW say, of a charge or of a bucket; nothing if they say nothing.
local function numbers_of(count, text)
  local window = text and windows.parsed(text)
  local numbers = window and { numbers = count .. ' ' .. text, count = tonumber(count), window = window }
  return numbers and numbers.count and numbers.count > 0 and numbers.count < EXACT and numbers or nil
end

local corrupt = 0

local function read(key, charge)
  local text = redis.call('GET', key)
  local since, level, count, window = match(text or '', '^(%d+) (%d+) (%d+) (%S+)$')
  since, level = tonumber(since), tonumber(level)
  local written = since and since < EXACT and level < EXACT and numbers_of(count, window)
  if written then
    return { since = since, level = level, written = written }
  end
  corrupt = corrupt + (text and 1 or 0)
  return { since = now, level = 0, written = charge }
end

-- What is used now, and the window that this is in, or an error.
local function level_now(bucket, charge)
  if windows.same(bucket.written, charge) then
    return windows.unchanged(bucket, charge, now)
  end
  local changed = min(max(effective_from, bucket.since), max(now, bucket.since))
  local used, anchor = windows.carried(bucket, changed)
  return windows.changed(bucket, charge, used, anchor, changed, now)
end

-- What a charge does to a bucket of which `level` is used: the outcome, the level to report, the wait before the same
-- charge would fit, and the level to store, which is nil if the bucket is left alone.
local function decided(charge, position, level)
  local mode, cost = charge.mode, charge.cost
  if mode == 'reset' then
    return ALLOWED, 0, 0, 0
  elseif mode == 'refund' then
    local used = level + position.excess
    local back = min(cost, used)
    return back > 0 and ALLOWED or UNCHANGED, min(used - back, charge.burst), 0, back > 0 and used - back or nil
  elseif mode == 'spend_up_to' then
    local taken = min(cost, charge.burst - level)
    return (taken > 0 or cost == 0) and ALLOWED or UNCHANGED, level + taken, 0, taken > 0 and level + taken or nil
  end
  local refusal = mode == 'spend_only' and UNCHANGED or DENIED
  if cost > charge.burst then
    return refusal, level, -1, nil
  elseif cost > charge.burst - level then
    return refusal, level, windows.time_for(charge, position, cost - (charge.burst - level)), nil
  end
  local after = level + cost
  local retry = cost > 0 and windows.time_for(charge, position, cost - (charge.burst - after)) or 0
  return ALLOWED, after, retry, mode ~= 'check' and cost > 0 and after or nil
end

local charges, reply, denied = {}, { 0 }, false
for place, key in ipairs(KEYS) do
  local burst, count, window, cost, mode = unpack(ARGV, 5 * place - 2, 5 * place + 2)
  local charge = numbers_of(count, window)
  if not charge or not tonumber(burst) or not tonumber(cost) then
    return redis.error_reply(format('ERR no charge: %s %s %s %s', burst, count, window, cost))
  elseif not MODES[mode] then
    return redis.error_reply('ERR unknown mode ' .. mode .. ': spend, check, spend_only, spend_up_to, refund or reset')
  end
  charge.burst, charge.cost, charge.mode = tonumber(burst), tonumber(cost), mode
  local level, position, failure = level_now(read(key, charge), charge)
  if failure then
    return redis.error_reply(failure)
  end
  local outcome, after, retry, write = decided(charge, position, level)
  denied = denied or outcome == DENIED
  charges[place] = { charge = charge, level = level, position = position, write = write }
  for _, number in ipairs({ outcome, charge.burst - after, retry, windows.reset(charge, position, after) }) do
    reply[#reply + 1] = number
  end
end
reply[1] = corrupt

for place, key in ipairs(KEYS) do
  local charge, level, position, write =
    charges[place].charge, charges[place].level, charges[place].position, charges[place].write
  local at = 4 * place - 2
  if denied and reply[at] == ALLOWED then
    reply[at], reply[at + 1] = UNCHANGED, charge.burst - level
    reply[at + 2], reply[at + 3] = 0, windows.reset(charge, position, level)
  elseif not denied and write == 0 then
    redis.call('DEL', key)
  elseif not denied and write then
    local text = format('%.0f %.0f %s', position.start, write, windows.written(charge, position).numbers)
    local full = windows.time_for(charge, position, min(write, charge.burst)) + position.at - now
    redis.call('SET', key, text, 'PX', given and GIVEN_CLOCK_EXPIRY or format('%.0f', max(1, ceil(full / 1000))))
  end
end
return reply
