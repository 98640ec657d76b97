-- GCRA with other numbers that switch on by themselves when a bucket is empty, for a while and so many times a month.
--
--   redis-cli --eval lua/elevated.lua KEY , NOW EFFECTIVE_FROM BURST TOKEN WORD COST MODE
--
-- Spend 1 of 20 per second, or of 100 per second for 15 minutes, 5 times a month, by the server's clock (an empty NOW):
--   redis-cli --eval lua/elevated.lua weir:{0}:PerAddress:192.0.2.1 , '' 0  20 50000 elevated:1:100:10000:1:900000000:5 1 spend
--
-- NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua, and BURST and TOKEN those of gcra.lua.
--   WORD  elevated:DRAIN:BURST:TOKEN:DRAIN:SPAN:ACTIVATIONS
--         the DRAIN of gcra.lua; the other BURST, TOKEN and DRAIN; for how many microseconds they switch on, and how often
--         in a month of UTC
-- They switch on for a charge that is refused without them and that they serve once what is used is deducted. Then they are
-- all that holds, until SPAN is over: what is left is cut to BURST. `check` answers as `spend` would. `spend_up_to` switches
-- them on only if no token is left. `reset` makes the bucket full, and leaves on what is on and the month's count as it is.
-- The reply has three integers more, as a list of their own in decide.lua: whether this charge has switched them on, whether
-- they are on, and how often they may still switch on this month, -1 unless this charge has switched them on.
--
-- A bucket is that of gcra.lua, "<since> <level> <token> <drain>", by the numbers that hold. If they are on or were in this
-- month, " <until> <activations> <month end>" stands behind it: until when they are on, 0 if that is over, and how often
-- they switched on before the month's end. gcra.lua goes on with what is used and forgets the rest, so a limit may gain and
-- lose these numbers. The key lives until the bucket is full, the numbers are off and the month is over.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local format, match, tonumber = string.format, string.match, tonumber
local EXACT = 9007199254740992
local ALLOWED, DENIED, UNCHANGED = 0, 1, 2

local time, given = redis.call('TIME'), ARGV[1] ~= ''
local now = given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local effective_from = tonumber(ARGV[2])

-- These three are those of gcra.lua, which tells why they are exact.
local function drained(level, drain, span)
  if span <= 0 then
    return level
  end
  level = level - drain * span
  return level > 0 and level or 0
end

local function reweighed(used, token, old_token, capacity)
  local whole, part = floor(token / old_token), token % old_token
  local quotient, remainder = 0, 0
  local function add(amount)
    if remainder >= old_token - amount then
      remainder = remainder - (old_token - amount)
      quotient = quotient + 1
    else
      remainder = remainder + amount
    end
  end
  local bit = EXACT / 2
  while bit >= 1 do
    quotient = quotient * 2
    add(remainder)
    if used >= bit then
      used = used - bit
      quotient = quotient + whole
      add(part)
    end
    bit = bit / 2
  end
  if remainder > 0 then
    quotient = quotient + 1
  end
  return quotient < capacity and quotient or capacity
end

local function time_for(levels, drain)
  if levels == 0 then
    return 0
  elseif drain == 0 then
    return -1
  end
  return ceil(levels / drain)
end

-- What is used now, in levels of numbers that need not be those that the bucket was written under.
local function level_now(bucket, by)
  local written = bucket.written
  -- As in decide.lua: what was written later and is more than fits stays used.
  local capacity = bucket.since <= by.from and by.capacity or EXACT - 1
  if written.numbers == by.numbers then
    return min(drained(bucket.level, by.drain, now - bucket.since), capacity)
  end
  local changed = min(max(by.from, bucket.since), max(now, bucket.since))
  local used = drained(bucket.level, written.drain, changed - bucket.since)
  return drained(reweighed(used, by.token, written.token, capacity), by.drain, now - changed)
end

-- What a charge does to a bucket by these numbers: the outcome, the level to report, the wait before the same charge would
-- fit, and the level to store, which is nil if the bucket is left alone.
local function decided(by, level)
  local mode, cost, wanted, room = by.mode, by.cost, by.cost * by.token, by.capacity - level
  if mode == 'reset' then
    return ALLOWED, 0, 0, 0
  elseif mode == 'refund' or mode == 'spend_up_to' then
    local after = mode == 'refund' and level - min(wanted, level) or level + min(wanted, max(room, 0))
    local taken = after ~= level and after or nil
    return (taken or mode ~= 'refund' and cost == 0) and ALLOWED or UNCHANGED, after, 0, taken
  elseif cost > by.burst or wanted > room and cost > 0 then
    local wait = cost > by.burst and -1 or time_for(wanted - room, by.drain)
    return mode == 'spend_only' and UNCHANGED or DENIED, level, wait, nil
  end
  local missing, after = wanted - (room - wanted), level + wanted
  local wait = cost > 0 and missing > 0 and time_for(missing, by.drain) or 0
  return ALLOWED, after, wait, mode ~= 'check' and cost > 0 and after or nil
end

local corrupt = 0

local function bucket_of(key, by)
  local text = redis.call('GET', key) or ''
  local since, level, numbers, more = match(text, '^(%d+) (%d+) (%d+ %d+)( ?[%d ]*)$')
  if since and (more == '' or match(more, '^ %d+ %d+ %d+$')) then
    local token, drain = match(numbers, '(%d+) (%d+)')
    local written = { numbers = numbers, token = tonumber(token), drain = tonumber(drain) }
    return { since = tonumber(since), level = tonumber(level), written = written, elevated = more ~= '' and more or nil }
  end
  corrupt = text == '' and 0 or 1
  return { since = now, level = 0, written = by }
end

local function write(key, bucket, level, by)
  bucket.key, bucket.level, bucket.written, bucket.elevated, bucket.full = key, level, by, nil, nil
end

-- Shared

local function elevated(now)
  local elevated = {}
  local ceil, max, min = math.ceil, math.max, math.min
  local format, match, tonumber = string.format, string.match, tonumber
  local EXACT = 9007199254740992
  local ALLOWED = 0
  local DAY = 86400000000
  -- tostring() keeps 14 digits of a number, and a time has 16.
  local INTEGER = format('%d', EXACT - 1) == '9007199254740991' and '%d' or '%.0f'
  local WORDS = ' ' .. INTEGER .. ' ' .. INTEGER .. ' ' .. INTEGER

  -- What stands behind the name in WORD.
  function elevated.parsed(text)
    local drain, burst, token, other, span, most = match(text, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
    if drain and tonumber(burst) > 0 and tonumber(token) > 0 and tonumber(most) > 0 then
      return {
        drain = tonumber(drain), numbers = token .. ' ' .. other, burst = tonumber(burst), token = tonumber(token),
        other = tonumber(other), span = tonumber(span), most = tonumber(most), plain = drain,
      }
    end
  end

  -- The numbers of a charge by themselves, for what knows no others: those of the limit and the elevated ones.
  local function plain(charge)
    if not charge.base then
      local words, cost, mode = charge.parameters, charge.cost, charge.mode
      charge.base = {
        burst = charge.burst, token = charge.count, drain = words.drain, capacity = charge.burst * charge.count,
        numbers = format(INTEGER, charge.count) .. ' ' .. words.plain, cost = cost, mode = mode, from = charge.from,
      }
      charge.raised = {
        burst = words.burst, token = words.token, drain = words.other, capacity = words.burst * words.token,
        numbers = words.numbers, cost = cost, mode = mode, from = charge.from,
      }
    end
    return charge.base, charge.raised
  end

  -- When the month ends that holds an instant, by UTC.
  local function month_end(at)
    local today = math.floor(at / DAY)
    local day, year = today, 1970
    while true do
      local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
      for month, days in ipairs({ 31, leap and 29 or 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 }) do
        if day < days then
          return min((today + days - day) * DAY, EXACT - 1)
        end
        day = day - days
      end
      year = year + 1
    end
  end

  -- What is used in levels of the limit's own numbers, when the elevated ones end with `level` used of theirs: what is left
  -- stays, as far as it fits. No product is 2^53 or more, and where the sum is it is more than the capacity.
  local function cut(base, raised, level)
    local more = raised.burst - base.burst
    if more >= 0 then
      local used = level - more * raised.token
      return used > 0 and reweighed(used, base.token, raised.token, base.capacity) or 0
    end
    return min(reweighed(level, base.token, raised.token, base.capacity) - more * base.token, base.capacity)
  end

  -- What is used when the elevated numbers end, of a bucket that was written under such.
  local function level_at(bucket, raised, ending)
    local written, since = bucket.written, bucket.since
    local capacity = since <= raised.from and raised.capacity or EXACT - 1
    if written.numbers == raised.numbers then
      return min(drained(bucket.level, raised.drain, ending - since), capacity)
    end
    local changed = min(max(raised.from, since), max(ending, since))
    local used = drained(bucket.level, written.drain, changed - since)
    return drained(reweighed(used, raised.token, written.token, capacity), raised.drain, ending - changed)
  end

  -- A bucket as a charge finds it: the numbers that hold and the level by them, until when the elevated ones do, how often
  -- they were switched on this month and when it ends. A clock that stepped back stands still until it has caught up.
  local function find(key, charge)
    local base, raised = plain(charge)
    local bucket = bucket_of(key, base)
    if bucket.failure then
      return nil, bucket.failure
    end
    local found = { bucket = bucket, by = base, instant = max(now, bucket.since), ending = 0, activations = 0, month_end = 0 }
    local ending, activations, over = match(bucket.elevated or '', '^ (%d+) (%d+) (%d+)$')
    ending, over = tonumber(ending) or 0, tonumber(over) or 0
    if found.instant < over then
      found.activations, found.month_end = tonumber(activations), over
    end
    if ending > found.instant then
      found.by, found.ending, found.level = raised, ending, level_now(bucket, raised)
    elseif ending == 0 then
      found.level = level_now(bucket, base)
    else
      local level = cut(base, raised, level_at(bucket, raised, ending))
      found.level = drained(level, base.drain, found.instant - ending)
    end
    return found
  end

  -- Microseconds until the elevated numbers can be switched on with `level` used, -1 for never. Deducted from their burst,
  -- the tokens used leave room for the cost if they are `burst - cost` at most, and have to drain to that first.
  local function until_activation(found, charge, level)
    -- What is taken as far as it is there needs room for something.
    local cost = charge.mode == 'spend_up_to' and min(charge.cost, 1) or charge.cost
    local base, room = charge.base, charge.raised.burst - cost
    if room < 0 then
      return -1
    end
    -- A product beyond 2^53 may be rounded, but is more than the level either way.
    local wait = time_for(max(level - room * base.token, 0), base.drain)
    if wait >= 0 and found.activations >= charge.parameters.most then
      return max(wait, found.month_end - found.instant)
    end
    return wait
  end

  -- Switches the elevated numbers on. What is used stays used.
  local function activate(found, charge)
    local base, raised = charge.base, charge.raised
    found.by, found.level = raised, reweighed(found.level, raised.token, base.token, raised.capacity)
    if found.month_end == 0 then
      found.month_end = month_end(found.instant)
    end
    found.activations = found.activations + 1
    -- The sum may not fit into 2^53.
    local span = charge.parameters.span
    found.ending = span < EXACT - found.instant and found.instant + span or EXACT - 1
  end

  local function said(found, triggered, left)
    return { 'elevated', triggered and 1 or 0, found.ending > 0 and 1 or 0, left }
  end

  local function remaining(by, level)
    return max(math.floor((by.capacity - level) / by.token), 0)
  end

  function elevated.decide(key, charge)
    local found, failure = find(key, charge)
    if not found then
      return nil, failure
    end
    local outcome, after, retry, level = decided(found.by, found.level)
    local mode, triggered, left = charge.mode, false, -1
    local room = found.by.capacity - found.level
    if found.ending == 0 and mode == 'spend_up_to' and charge.cost > 0 and room < found.by.token
      and until_activation(found, charge, found.level) == 0 then
      triggered = true
      activate(found, charge)
      left = charge.parameters.most - found.activations
      outcome, after, retry, level = decided(found.by, found.level)
    elseif found.ending == 0 and (mode == 'spend' or mode == 'check' or mode == 'spend_only') then
      local wait = until_activation(found, charge, after)
      triggered = outcome ~= ALLOWED and wait == 0
      if triggered then
        activate(found, charge)
        left = charge.parameters.most - found.activations
        outcome, after, retry, level = decided(found.by, found.level)
      elseif retry == -1 or wait >= 0 and wait < retry then
        retry = wait
      end
    end
    found.write = level
    return outcome, remaining(found.by, after), retry, time_for(after, found.by.drain), level and found,
      said(found, triggered, left)
  end

  function elevated.standing(key, charge)
    local found = find(key, charge)
    return remaining(found.by, found.level), time_for(found.level, found.by.drain), said(found, false, -1)
  end

  function elevated.commit(key, charge, found)
    local bucket, base, level, drain = found.bucket, charge.base, found.write, found.by.drain
    write(key, bucket, level, found.by)
    if found.ending == 0 and found.activations == 0 then
      -- A bucket that is made full is forgotten, its time included.
      bucket.since = level == 0 and now or found.instant
      return nil
    end
    bucket.since = found.instant
    bucket.elevated = format(WORDS, found.ending, found.activations, found.month_end)
    -- When the bucket is full and the elevated numbers are off; spans, whose sums may be beyond 2^53 and are rounded then.
    local full = time_for(level, drain)
    if found.ending > 0 then
      local span = found.ending - found.instant
      full = time_for(cut(base, charge.raised, drained(level, drain, span)), base.drain)
      full = full >= 0 and span + full or -1
    end
    if full >= 0 and found.activations > 0 then
      full = max(full, found.month_end - found.instant)
    end
    bucket.full = full >= 0 and full + (found.instant - now) or -1
  end

  return elevated
end

-- Alone

-- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
local GIVEN_CLOCK_EXPIRY = 600000
local MODES = { spend = true, check = true, spend_only = true, spend_up_to = true, refund = true, reset = true }

local algorithm = elevated(now)
local charge = {
  burst = tonumber(ARGV[3]), count = tonumber(ARGV[4]), cost = tonumber(ARGV[6]), mode = ARGV[7], from = effective_from,
  parameters = algorithm.parsed(match(ARGV[5] or '', '^elevated:(.*)') or ''),
}
if #KEYS ~= 1 or not charge.parameters or not charge.cost then
  return redis.error_reply('ERR usage: KEY , NOW EFFECTIVE_FROM BURST TOKEN WORD COST MODE')
elseif not MODES[charge.mode] then
  return redis.error_reply('ERR unknown mode ' .. tostring(charge.mode))
end
local outcome, remaining, retry, reset, change, detail = algorithm.decide(KEYS[1], charge)
if change then
  algorithm.commit(KEYS[1], charge, change)
  local bucket = change.bucket
  if bucket.level == 0 and not bucket.elevated then
    redis.call('DEL', KEYS[1])
  else
    local value = format('%.0f %.0f %s', bucket.since, bucket.level, bucket.written.numbers) .. (bucket.elevated or '')
    local full = bucket.full or time_for(bucket.level, bucket.written.drain)
    if full == -1 then
      redis.call('SET', KEYS[1], value)
    else
      local expiry = given and GIVEN_CLOCK_EXPIRY or format('%.0f', max(1, ceil(full / 1000)))
      redis.call('SET', KEYS[1], value, 'PX', expiry)
    end
  end
end
return { corrupt, outcome, remaining, retry, reset, detail[2], detail[3], detail[4] }
