-- Buckets that hold a level, for gcra.lua, fixed_window.lua and elevated.lua. A limit may change between these algorithms
-- and keeps what is used.
--
-- A bucket is a string "<since> <level> <numbers>": what was used at <since>, and the two words of the charge that wrote it.
-- A bucket without a key is full. Buckets are read once a call, and written once at its end, by `finish`.
--
-- An algorithm whose level does not drain at a constant rate has these functions beside those of decide.lua:
--   wait(charge, position, levels)   microseconds until `levels` have come back
--   span(bucket)                     microseconds until a bucket is full, by the numbers it was written under
--   carried(bucket, instant)         the tokens that are used at an instant, by the numbers the bucket was written under, and
--                                    when the window began that was under way
-- leases.lua adds to the text of a bucket of which gateways hold tokens, and holds.lua to that of one with reservations.

-- Shared

local buckets, dirty = {}, {}

-- The level after `span` microseconds. A product beyond 2^53 may be rounded, but never to below 2^53: it still is more than
-- any level, and the bucket is full either way.
local function drained(level, drain, span)
  if span <= 0 then
    return level
  end
  level = level - drain * span
  return level > 0 and level or 0
end

-- Microseconds until `levels` have left the bucket, rounded up; -1 for never. Below 2^53 the double nearest to a quotient of
-- integers is a whole number only if the quotient is one: levels = n * drain + 1 is 1 / drain above n, which is more than half
-- of the distance between the doubles there, since n * drain < 2^53. So ceil (and floor, and %) are exact.
local function time_for(levels, drain)
  if levels == 0 then
    return 0
  elseif drain == 0 then
    return -1
  end
  local time = levels / drain
  local part = time % 1
  return part > 0 and time - part + 1 or time
end

-- Defined below.
local decided

--[[ include leases.lua ]]
--[[ include holds.lua ]]
-- Functions that few calls need. Each function costs every call that creates it.
local rare_functions
local function rare()
  if rare_functions then
    return rare_functions
  end
  local rare = {}
  rare_functions = rare

  -- ceil(used * token / old_token), at most capacity. The product may need 106 bits, so it is never formed: the bits of
  -- `used` are taken from the top, and quotient and remainder are doubled and added to, as in long multiplication. Remainders
  -- stay below old_token because the sum is compared before it is formed. Quotients beyond 2^53 may be rounded, but never to
  -- below 2^53: they still are more than any capacity.
  function rare.reweighed(used, token, old_token, capacity)
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

  -- What is used when the numbers that hold now took effect, of a bucket that was written under others: the level, what a
  -- token weighs in it, when that was, and when its window began.
  function rare.carried(bucket, from, instant)
    local since, written = bucket.since, bucket.written
    local changed = changed_at(since, from, instant)
    local carried = written.algorithm and written.algorithm.carried
    if carried then
      local used, anchor = carried(bucket, changed)
      return used, 1, changed, anchor
    end
    return drained(bucket.level, written.parameters, changed - since), written.count, changed, changed
  end

  -- Microseconds until a bucket that was written under other numbers counts as full: when it is full by those. Its key may be gone
  -- then. Nil if it never is, and if the rules have changed to the numbers of the charge since.
  function rare.full_in(bucket, from)
    local since, written = bucket.since, bucket.written
    if bucket.level == 0 or bucket.leased or follow_a_change(from, since) then
      return nil
    end
    local span = written.algorithm and written.algorithm.span
    local wait = span and span(bucket) or time_for(bucket.level, written.parameters)
    return wait >= 0 and wait < EXACT and wait - (max(now, since) - since) or nil
  end

  -- Keeps a key that was written under other numbers until its bucket is full by these, in `full` microseconds; -1 for never.
  function rare.outlive(key, full)
    local left = not given and full ~= 0 and call('PTTL', key) or -1
    if left >= 0 and full == -1 then
      pcall('PERSIST', key)
    elseif left >= 0 and left < ceil(full / 1000) then
      pcall('PEXPIRE', key, kept_for(full))
    end
  end

  -- Dates a bucket now: it refills from here on, and nobody waits for the clock to catch up. It is written so even if nothing
  -- else is.
  function rare.redate(key, bucket)
    local ahead = bucket.since - now
    bucket.since, bucket.dirty, bucket.is_redated = now, true, true
    -- No lease runs longer, by any clock.
    bucket.lease_end = bucket.leased and min(bucket.lease_end, now + LONGEST_LEASE)
    dirty[#dirty + 1] = key
    local ending, rest = match(bucket.elevated or '', '^ (%d+)( %d+ %d+)$')
    if ending then
      bucket.elevated = format(' ' .. INTEGER, max(tonumber(ending) - ahead, 0)) .. rest
    end
  end

  -- The numbers that a bucket was written under; nil if they are not those of a level. A constant drain needs no algorithm.
  function rare.numbers_of(numbers)
    local count, word = match(numbers, '^(%d+) (%S+)$')
    local algorithm, parameters = nil, nil
    if match(word, '%D') then
      algorithm, parameters = algorithm_of(word)
    else
      parameters = tonumber(word)
    end
    count = tonumber(count)
    local is_level = parameters and (algorithm and algorithm.carried or not algorithm and parameters < EXACT)
    if is_level and count > 0 and count < EXACT then
      return { numbers = numbers, count = count, parameters = parameters, algorithm = algorithm }
    end
  end

  -- A spend or check that does not fit for `wait` microseconds, but within its patience: it is booked for then. Without a result
  -- it is not.
  function rare.booked(charge, level, position, missing, wait, capacity)
    local wanted = charge.cost * (position and 1 or charge.count)
    local after = level + wanted
    if position then
      -- The tokens that are left of earlier windows do not count in the one that is booked.
      after = max(level, ceil(missing / charge.count) * charge.count) + wanted
    end
    if after < EXACT then
      local again = after + wanted - capacity
      local retry = position and charge.algorithm.wait(charge, position, again) or time_for(again, charge.parameters)
      return -wait, after, retry, charge.mode ~= 'check' and after or nil
    end
  end

  return rare
end

-- The bucket of a key as earlier requests of the call have left it. GET rather than MGET: MGET answers nil for a key of
-- another type, which would pass for a full bucket and be overwritten. A bucket was most likely written under the numbers of
-- the charge: then its text has nothing else to be read.
local function bucket_of(key, charge)
  local bucket = buckets[key]
  if bucket then
    return bucket
  end
  bucket = { since = now, level = 0, written = charge, full = 0, found = 0 }
  buckets[key] = bucket
  local text = pcall('GET', key)
  if not text then
    return bucket
  elseif text.err then -- A text has no fields.
    bucket.failure = not discarded(key, text) and text or nil
    return bucket
  end
  local since, level, numbers = match(text, '^(%d+) (%d+) (%d+ %S+)$')
  if not since then
    text = match(text, ' !') and holding().read(bucket, text, key) or text
    text = match(text, ' [+-]%d+:%d+$') and leasing().read(bucket, text) or text
    since, level, numbers = match(text, '^(%d+) (%d+) (%d+ %S+)$')
  end
  if not since then
    -- Algorithms other than elevated.lua ignore what that adds.
    since, level, numbers, bucket.elevated = match(text, '^(%d+) (%d+) (%d+ %d+)( %d+ %d+ %d+)$')
  end
  local written = charge
  if numbers then
    -- Converts once, where tonumber() converts twice.
    since, level = since + 0, level + 0
    if numbers ~= charge.numbers then
      written = rare().numbers_of(numbers)
    end
  end
  if numbers and written and since < EXACT and level < EXACT then
    bucket.since, bucket.level, bucket.written = since, level, written
    if since > now + MOST_AHEAD then
      rare().redate(key, bucket)
    end
  else
    bucket.elevated, bucket.leased, bucket.holds = nil, nil, nil
    corrupt = corrupt + 1
  end
  return bucket
end

-- The level at an instant, by numbers with a constant drain. A bucket that was written before they took effect drains at its own
-- rate until then, is weighed anew (the tokens used stay the same), is cut to their capacity, and drains at their rate from there:
-- nobody waits longer than one full refill. Under other numbers `key`, if given, is then kept for as long as they need. What was
-- written later and is more is of a gateway with other rules, perhaps newer ones: it stays used.
local function level_at(bucket, charge, instant, key)
  local token, drain = charge.count, charge.parameters
  local capacity = EXACT - 1
  if bucket.since <= charge.from then
    -- With the levels that may be booked ahead.
    capacity = min(charge.burst * token + (charge.delay or 0) * drain, capacity)
  end
  if bucket.written.numbers == charge.numbers then
    local level, since = bucket.level, bucket.since
    if level > capacity then
      local changed = changed_at(since, charge.from, instant)
      level, since = min(drained(level, drain, changed - since), capacity), changed
    end
    level = drained(level, drain, instant - since)
    return bucket.leased and max(level, leasing().held(bucket, charge)) or level
  end
  local used, old_token, changed = rare().carried(bucket, charge.from, instant)
  local level = drained(rare().reweighed(used, token, old_token, capacity), drain, instant - changed)
  level = bucket.leased and max(level, leasing().held(bucket, charge)) or level
  if key then
    rare().outlive(key, time_for(level, drain))
  end
  return level
end

-- Decides a charge at `level`, in a window if there is a `position`: the outcome, the level to report, the wait before the
-- same charge would fit, and the level to store, which is nil if the bucket is left alone. `token` is what a token weighs, and
-- `least` what no charge gives back, because it is leased. `held` tokens are missing from the capacity.
function decided(charge, token, level, position, least, held)
  local mode, cost = charge.mode, charge.cost
  local capacity, wanted = (charge.burst - (held or 0)) * token, cost * token
  if mode == 'refund' then
    -- A product beyond 2^53 may be rounded, but is more than the level either way.
    local excess = position and position.excess or 0
    -- The tokens of an earlier window are over.
    local is_over = position and charge.taken and charge.taken < position.start
    local back = is_over and 0 or min(wanted, max(level + excess - least, 0))
    if back == 0 then
      return UNCHANGED, level, 0, nil
    end
    local left = level + excess - back
    return ALLOWED, excess > 0 and min(left, charge.burst * token) or left, 0, left
  elseif mode == 'reset' then
    return ALLOWED, least, 0, least
  elseif mode == 'spend_up_to' then
    local taken = min(wanted, max(capacity - level, 0))
    if taken == 0 then
      return cost == 0 and ALLOWED or UNCHANGED, level, 0, nil
    end
    return ALLOWED, level + taken, 0, level + taken
  end
  -- A cost may be larger than 2^53; then it is not compared with the room.
  if cost > charge.burst then
    return charge.short, level, -1, nil
  end
  -- There is less than no room if another gateway has a higher burst. While tokens are held, the cost may be above the capacity.
  local room = capacity - level
  if wanted > room and cost > 0 then
    local missing = wanted - room
    local wait = wanted > capacity and -1 or position and charge.algorithm.wait(charge, position, missing)
      or time_for(missing, charge.parameters)
    if charge.delay and wait > 0 and wait <= charge.patience then
      local outcome, after, retry, change = rare().booked(charge, level, position, missing, wait, capacity)
      if outcome then
        if charge.look then
          return outcome, level, 0, nil
        end
        return outcome, after, retry, change
      end
    end
    return charge.short, level, wait, nil
  elseif charge.look then
    return ALLOWED, level, 0, nil
  end
  -- An identical charge would fit once what is missing has come back. The sum 2 * wanted may not fit into 2^53.
  local missing, retry, after = wanted - (room - wanted), 0, level + wanted
  if cost > 0 and missing > 0 then
    retry = position and charge.algorithm.wait(charge, position, missing) or time_for(missing, charge.parameters)
  end
  return ALLOWED, after, retry, mode ~= 'check' and cost > 0 and after or nil
end

-- Sets what is used of a bucket, and in how many microseconds it is full; -1 for never.
local function keep(key, bucket, level, written, since, full)
  if not bucket.dirty then
    bucket.dirty = true
    dirty[#dirty + 1] = key
  end
  if bucket.leased and bucket.written.numbers ~= written.numbers then
    bucket.keeps_leases = true
  end
  bucket.level, bucket.written, bucket.since, bucket.full = level, written, since, full
  -- Not at once: even nil makes a table grow.
  if bucket.elevated or bucket.is_redated then
    bucket.elevated, bucket.is_redated = nil, nil
  end
  -- The level includes what is left of leases that have ended.
  if bucket.leased and bucket.lease_end <= now then
    bucket.leased, bucket.keeps_leases = nil, nil
  end
end

-- Writes each bucket once, however many requests have charged it, and adds errors to `errors` by key. The value and its expiry
-- are one command, so no crash leaves a key without one. The expiry is rounded up: a key that is gone early is a bucket that
-- is full early.
local function finish(errors)
  if #dirty == 0 then
    return errors
  end
  local written_now = format(INTEGER, now) .. ' ' .. INTEGER .. ' %s'
  for place = 1, #dirty do
    local key = dirty[place]
    local bucket, done = buckets[key], nil
    if bucket.level == 0 and not bucket.elevated and not bucket.holds then
      done = pcall('DEL', key)
      done = type(done) == 'table' and done or nil
    else
      local text
      if bucket.since == now then
        text = format(written_now, bucket.level, bucket.written.numbers)
      else
        text = format(INTEGER .. ' ' .. INTEGER .. ' %s', bucket.since, bucket.level, bucket.written.numbers)
      end
      if bucket.elevated then
        text = text .. bucket.elevated
      end
      if bucket.leased then
        local mark = bucket.keeps_leases and ' -' or ' +'
        text = text .. mark .. format(INTEGER .. ':' .. INTEGER, bucket.leased, bucket.lease_end)
        -- Until the leases end, nothing may drain.
        bucket.full = bucket.full >= 0 and bucket.full + max(bucket.lease_end - now, 0) or -1
      end
      if bucket.holds then
        text = text .. holding().text(bucket.holds)
        bucket.full = bucket.full >= 0 and max(bucket.full, holding().kept(bucket.holds)) or -1
      end
      if bucket.is_redated then
        -- It expires later than needed.
        done = pcall('SET', key, text, 'KEEPTTL')
      elseif bucket.full == -1 and not given then
        done = pcall('SET', key, text)
      else
        done = pcall('SET', key, text, 'PX', kept_for(bucket.full))
      end
    end
    if done and done.err then
      errors = errors or {}
      errors[key] = done
    end
  end
  dirty = {}
  return errors
end
