-- What a gateway sends to Redis: decides the charges of one request, all or nothing, or of many requests, one after the
-- other, in one call. Each algorithm is a file of its own beside this one, which tells its words and runs alone as well;
-- the lines below that say `include` stand for what the named file has between its lines `Shared` and `Alone`.
--
-- KEYS: the buckets, no two alike in one request; on a cluster all of one slot.
-- ARGV[1] NOW: microseconds since the Unix epoch, or empty for the server's own clock.
-- ARGV[2] EFFECTIVE_FROM: when these numbers took effect, in the same unit; read where a bucket was written under others.
-- Then one argument for each request: five words for each of its keys, in the order of KEYS, with a blank between all of
-- them. The same text again costs next to nothing, and most requests of a gateway say the same.
--   BURST        the capacity, in tokens
--   TOKEN DRAIN  how they come back: by gcra.lua, or
--   COUNT WORD   by another algorithm, which the WORD names
--   COST         tokens; 0 asks without taking
--   MODE         spend        takes the cost if it is there, and denies the whole request otherwise
--                check        answers as spend would, and takes nothing
--                spend_only   takes the cost if it is there, and never denies
--                spend_up_to  takes the cost, or all that is left if that is less, and never denies
--                refund       gives the cost back, up to a full bucket
--                reset        makes the bucket full
--              `~` and a span may stand behind refund: how many microseconds ago the cost was taken, which sliding_log and
--              sliding_window then give back what was taken then; and `@` and an instant behind any of them: when the
--              numbers took effect, if that was after EFFECTIVE_FROM
-- As arguments of their own the words are those of one request.
-- A last argument that begins with # is repeated in the reply, so that a caller can tell that it answers this call.
--
-- Reply: integers. First the number of keys whose text was no bucket; they count as full and are overwritten. Then four
-- for each key:
--   outcome    0 allowed, 1 denied, 2 nothing happened
--   remaining  whole tokens left
--   retry      microseconds until the same charge would fit, -1 for never
--   reset      microseconds until the bucket is full, or its window ends; -1 for never
-- If one charge of a request is denied none of its buckets changes but those that count what is refused, and the others
-- report where their bucket stands without the charge, or with it where it counts. Each request finds the buckets as
-- those before it have left them. Two things are written even so: a bucket that is dated ahead of the clock is dated now, and
-- a key that was written under other numbers is kept for as long as these need.
-- Then the argument that begins with #, if there is one.
-- Last, if an algorithm says more than that of any charge, a list: the number of the charge in the call, counted from 0,
-- and a list of what is said, and so on.
--
-- A request with a bucket that cannot be read or written (WRONGTYPE, OOM, ...) has that error in place of its integers,
-- and the others have their answers. It changes nothing if a bucket cannot be read. A server that refuses a write
-- refuses every write of the call.
--
-- Numbers are doubles. BURST * TOKEN, TOKEN, DRAIN and all times must be below 2^53, below which doubles hold every
-- integer. Where an intermediate result can be larger the comment says why that does no harm.

-- Scripts of the user that this call charges, by name; a gateway writes them in here (see script.lua). They come before
-- all else, so that no name of this file is known in them.
local scripts = {}
-- What keeps an error in one of them from being the error of the call.
local protected = pcall

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local format, match, sub, tonumber, type = string.format, string.match, string.sub, tonumber, type
-- An error that Redis gives is a value, so that it stays with the request whose bucket it is about.
local pcall = redis.pcall

-- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time:
-- the server cannot know when that clock will have filled the bucket.
local GIVEN_CLOCK_EXPIRY = 600000

-- How long a key outlives its bucket, in case the rules change to slower ones before it is full: for as long again as it
-- took to be full, and at most for this long, in microseconds. Whoever charges or checks it then under other numbers keeps
-- it for as long as those need.
local RETENTION = 60000000

-- How far ahead of the clock a bucket may be dated, in microseconds: until then it stands still, and beyond that it is dated
-- now. The clock stepped back, or another server has been asked so far whose clock is ahead.
local MOST_AHEAD = 1000000

local EXACT = 9007199254740992
local ALLOWED, DENIED, UNCHANGED = 0, 1, 2

-- tostring() keeps 14 digits of a number, and a time has 16. '%d' takes a fifth of the time of '%.0f', and is as exact
-- wherever C's long has 64 bits.
local INTEGER = format('%d', EXACT - 1) == '9007199254740991' and '%d' or '%.0f'
local SINCE_LEVEL = INTEGER .. ' ' .. INTEGER .. ' '

-- The time is read once, so that all buckets of the call agree on it.
local given = ARGV[1] ~= ''
local now
if given then
  now = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local effective_from = tonumber(ARGV[2])

-- include gcra.lua

-- What the algorithms of levels are made of, which are further down.
local bucket_of, level_now, decided, write

-- What other algorithms are made of. Each is made for a call that has charges of its kind: a tenth of a microsecond for
-- each of dozens of functions is much beside the fifteen of a call.
--
-- An algorithm that is no matter of levels has a table with these functions. `charge` has the words of the charge as
-- fields, and `parameters`, what `parsed` made of WORD.
--   parsed(text)                   what stands behind the name in WORD; nothing if that is none
--   decide(key, charge)            outcome, remaining, retry, reset, the change to write or nil, a list of what else is to
--                                  be said or nil, and whether the change is written even if the request is denied; or nil
--                                  and an error
--   standing(key, charge)          remaining and reset without the charge, and a list of what else is to be said or nil
--   commit(key, charge, change)    writes the change at once: the requests after this one read it; nil or an error
-- and, if its keys hold text, `corrupt`, the number of those whose text was no bucket.
-- One that cannot be asked without counting has instead of `decide` and `commit`:
--   run(key, charge)               counts: outcome and what else is to be said; or nil and an error. It comes last, and
--                                  only if no other charge of the request denies.
local function algorithms()
  -- include fixed_window.lua
  -- include sliding_log.lua
  -- include sliding_window.lua
  -- include concurrency.lua
  -- include queue.lua
  -- include script.lua
  -- include elevated.lua
  return {
    fixed_window = fixed_windows, sliding_log = sliding_log, sliding_window = sliding_window,
    concurrency = concurrency, queue = queue, script = user_scripts, elevated = elevated,
  }
end

local made, makers = {}, nil
local windows

-- The algorithm of this name, if there is one.
local function algorithm(name)
  makers = makers or algorithms()
  if not made[name] and makers[name] then
    made[name] = makers[name](now, given)
  end
  return made[name]
end

-- TOKEN and DRAIN as numbers; nothing if no bucket can have them.
local function weights(token, drain)
  token, drain = tonumber(token), tonumber(drain)
  if token > 0 and token < EXACT and drain < EXACT then
    return token, drain
  end
end

-- What the two words of a bucket's or a charge's numbers say: TOKEN and DRAIN of "<token> <drain>", or a TOKEN of 1, no DRAIN,
-- COUNT and the window, or else the algorithm and its parameters, of "<count> <word>". Nothing if they say nothing.
local function numbers_of(first, second)
  if not match(second, '%D') then
    return weights(first, second)
  end
  local count, name = tonumber(first), match(second, '^([%l_]+):')
  if not (count > 0 and count < EXACT) then
    return nil
  end
  local other = name and algorithm(name)
  if other then
    local parameters = other.parsed(sub(second, #name + 2))
    if parameters then
      return 1, nil, count, nil, other, parameters
    end
    return nil
  end
  windows = windows or algorithm('fixed_window')
  local window = windows.parsed(second)
  if window then
    return 1, nil, count, window
  end
end

local MODES = { spend = true, check = true, spend_only = true, spend_up_to = true, refund = true, reset = true }

-- The charges that the words of a request name; nothing if they are others than five for each.
local function parsed(words)
  local charges, at = {}, 1
  repeat
    local burst, numbers, first, second, cost, mode, rest = match(words, '^(%d+) ((%d+) (%S+)) (%d+) (%S+) ?()', at)
    if not burst then
      return nil
    end
    local token, drain, count, window, other, parameters = numbers_of(first, second)
    if not token then
      return nil
    end
    burst, cost, at = tonumber(burst), tonumber(cost), rest
    local from, taken = effective_from, nil
    if not MODES[mode] then
      local plain, ago, changed = match(mode, '^([%l_]+)~?(%d*)@?(%d*)$')
      mode, taken, from = plain or mode, tonumber(ago) and max(now - ago, 0), max(from, tonumber(changed) or 0)
    end
    -- A table that is made with all of its fields never grows.
    charges[#charges + 1] = count and {
      burst = burst, numbers = numbers, token = token, capacity = burst, cost = cost, mode = mode,
      from = from, taken = taken, count = count, window = window, algorithm = other, parameters = parameters,
    } or {
      burst = burst, numbers = numbers, token = token, drain = drain, capacity = burst * token, cost = cost, mode = mode,
      from = from,
    }
  until at > #words
  return charges
end

local requests, charges_of, named = {}, {}, 0
local echo, last = ARGV[#ARGV], #ARGV
if echo and sub(echo, 1, 1) == '#' then
  last = last - 1
else
  echo = nil
end
if last >= 3 and not match(ARGV[3], ' ') then
  requests[1] = table.concat(ARGV, ' ', 3, last)
else
  for at = 3, last do
    requests[at - 2] = ARGV[at]
  end
end
for _, words in ipairs(requests) do
  local charges = charges_of[words] or parsed(words)
  if not charges then
    named = 0
    break
  end
  if not charges_of[words] then
    for _, charge in ipairs(charges) do
      if not MODES[charge.mode] then
        return redis.error_reply('ERR unknown mode ' .. charge.mode .. ': spend, check, spend_only, spend_up_to, refund or reset')
      end
    end
    charges_of[words] = charges
  end
  named = named + #charges
end
if #KEYS == 0 or named ~= #KEYS then
  return redis.error_reply('ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM, and BURST TOKEN DRAIN COST MODE for each KEY')
end

local corrupt = 0

-- The bucket of a key. It is read once a call, by GET rather than MGET: MGET answers nil for a key of another type, which
-- would pass for a full bucket and be overwritten. The numbers of the charge are those that it was most likely written
-- under: if it has the same text there is nothing to be read from it.
local function read(key, charge)
  local bucket = { key = key, since = now, level = 0, written = charge, dirty = false, full = false }
  local text = pcall('GET', key)
  if type(text) == 'table' then
    bucket.failure = text
  elseif text then
    local since, level, numbers = match(text, '^(%d+) (%d+) (%d+ %S+)$')
    if not since then
      -- What elevated.lua has added is nothing to those who do not know it.
      since, level, numbers, bucket.elevated = match(text, '^(%d+) (%d+) (%d+ %d+)( %d+ %d+ %d+)$')
    end
    since, level = tonumber(since), tonumber(level)
    local written = charge
    if numbers and numbers ~= charge.numbers then
      local token, drain, count, window, other = numbers_of(match(numbers, '^(%d+) (%S+)$'))
      written = token and not other and { numbers = numbers, token = token, drain = drain, count = count, window = window }
    end
    if numbers and written and since < EXACT and level < EXACT then
      bucket.since, bucket.level, bucket.written = since, level, written
    else
      bucket.elevated = nil
      corrupt = corrupt + 1
    end
  end
  return bucket
end

local buckets, dirty = {}, {}

-- What few calls need; a function costs each call in which it is made.
local function aside()
  local rare = {}

  -- Keeps a key that was written under other numbers until its bucket is full by these, after so many microseconds, -1 for
  -- never.
  function rare.outlive(key, full)
    local left = not given and full ~= 0 and redis.call('PTTL', key) or -1
    if left >= 0 and full == -1 then
      pcall('PERSIST', key)
    elseif left >= 0 and left < ceil(full / 1000) then
      pcall('PEXPIRE', key, format(INTEGER, max(1, ceil((full + min(full, RETENTION)) / 1000))))
    end
  end

  -- Dates a bucket now: it refills from here on, and nobody waits for the clock to come where it has been. It is written so
  -- even if nothing else is.
  function rare.redate(key, bucket, charge)
    local ahead = bucket.since - now
    bucket.since, bucket.dirty, bucket.is_redated = now, true, true
    dirty[#dirty + 1] = key
    local ending, rest = match(bucket.elevated or '', '^ (%d+)( %d+ %d+)$')
    if ending then
      bucket.elevated = format(' ' .. INTEGER, max(tonumber(ending) - ahead, 0)) .. rest
    end
    if bucket.written.window then
      bucket.written = windows.redated(bucket.written, charge, now)
    end
  end

  return rare
end

-- The bucket of a key as those before have left it.
function bucket_of(key, charge)
  local bucket = buckets[key]
  if not bucket then
    bucket = read(key, charge)
    buckets[key] = bucket
    if bucket.since > now + MOST_AHEAD then
      aside().redate(key, bucket, charge)
    end
  end
  return bucket
end

-- Sets what is used of a bucket; it is written once, at the end.
function write(key, bucket, level, charge)
  if not bucket.dirty then
    bucket.dirty = true
    dirty[#dirty + 1] = key
  end
  bucket.level, bucket.written, bucket.full, bucket.elevated = level, charge, false, nil
  if bucket.is_redated then
    bucket.is_redated = false
  end
end

-- What is left when the numbers that hold now took effect, of a bucket that was written under others: tokens, which may
-- be parts of one, and when its window began. Also when that was.
local function carried(bucket, from)
  local since, written = bucket.since, bucket.written
  local changed = min(max(from, since), max(now, since))
  if written.window then
    local used, anchor = windows.carried(bucket, changed)
    return used, anchor, changed
  end
  return drained(bucket.level, written.drain, changed - since), changed, changed
end

-- What is used now, in levels of the numbers that hold now; in windows also the window that this is in, or an error.
-- Under changed numbers the level drains at the old rate until the new ones took effect, is weighed anew (the tokens used
-- stay the same), and drains at the new rate from there. It is cut to the capacity of numbers that took effect after the
-- bucket was written. What was written later and is more is of a gateway with other rules, newer ones perhaps: what it has
-- counted stays used.
function level_now(bucket, charge)
  local level, written, from = bucket.level, bucket.written, charge.from
  local capacity = bucket.since <= from and charge.capacity or EXACT - 1
  if charge.window then
    if level == 0 then
      return windows.changed(bucket, charge, 0, now, now, now)
    elseif windows.same(written, charge) then
      return windows.unchanged(bucket, charge, now)
    end
    local used, anchor, changed = carried(bucket, from)
    local left, position, failure = windows.changed(bucket, charge, ceil(used / written.token), anchor, changed, now)
    if position then
      aside().outlive(bucket.key, windows.time_for(charge, position, left))
    end
    return left, position, failure
  elseif written.numbers == charge.numbers then
    level = drained(level, charge.drain, now - bucket.since)
    return level < capacity and level or capacity
  end
  local used, _, changed = carried(bucket, from)
  level = drained(reweighed(used, charge.token, written.token, capacity), charge.drain, now - changed)
  aside().outlive(bucket.key, time_for(level, charge.drain))
  return level
end

-- Microseconds until `levels` have come back.
local function wait_for(charge, position, levels)
  if charge.window then
    return windows.time_for(charge, position, levels)
  end
  return time_for(levels, charge.drain)
end

-- Microseconds until the bucket is full; in windows, until the window ends.
local function reset_after(charge, position, level)
  if charge.window then
    return windows.reset(charge, position, level)
  end
  return time_for(level, charge.drain)
end

-- What a charge does to a bucket at `level`: the outcome, the level to report, the wait before the same charge would fit,
-- and the level to store, which is nil if the bucket is left alone.
function decided(charge, level, position)
  local mode, cost, token = charge.mode, charge.cost, charge.token
  if mode == 'refund' then
    -- A product beyond 2^53 may be rounded, but is more than the level either way.
    local excess = position and position.excess or 0
    local back = min(cost * token, level + excess)
    if back == 0 then
      return UNCHANGED, level, 0, nil
    end
    local left = level + excess - back
    return ALLOWED, excess > 0 and min(left, charge.capacity) or left, 0, left
  elseif mode == 'reset' then
    return ALLOWED, 0, 0, 0
  elseif mode == 'spend_up_to' then
    local taken = min(cost * token, max(charge.capacity - level, 0))
    if taken == 0 then
      return cost == 0 and ALLOWED or UNCHANGED, level, 0, nil
    end
    return ALLOWED, level + taken, 0, level + taken
  end
  local refusal = mode == 'spend_only' and UNCHANGED or DENIED
  -- It may be larger than 2^53; it is not multiplied.
  if cost > charge.burst then
    return refusal, level, -1, nil
  end
  -- There is less than no room if another gateway has a higher burst.
  local room, wanted = charge.capacity - level, cost * token
  if wanted > room and cost > 0 then
    return refusal, level, wait_for(charge, position, wanted - room), nil
  end
  -- An identical charge would fit once what is missing has drained. The sum 2 * wanted may not fit into 2^53.
  local missing = wanted - (room - wanted)
  local retry = cost > 0 and missing > 0 and wait_for(charge, position, missing) or 0
  local after = level + wanted
  if mode == 'check' or cost == 0 then
    return ALLOWED, after, retry, nil
  end
  return ALLOWED, after, retry, after
end

local failures, failing = {}, false
-- For the request at hand: its buckets, the levels and windows that its charges found, the levels or changes that they
-- would store, and which changes are stored even if it is denied.
local held, levels, positions, writes, counts_denied = {}, {}, {}, {}, {}
local reply, size, keys, details = { 0 }, 1, 0, nil

-- Keeps what an algorithm says beside the four integers of a charge.
local function say(place, detail)
  details = details or {}
  details[#details + 1] = keys + place - 1
  details[#details + 1] = detail
end

-- Writes the changes of those charges of a request that are no matter of levels: nil or an error.
local function commit(charges, denied)
  for place, charge in ipairs(charges) do
    if charge.algorithm and writes[place] and (counts_denied[place] or not denied) then
      local failure = charge.algorithm.commit(KEYS[keys + place], charge, writes[place])
      if failure then
        return failure
      end
    end
  end
end

for request = 1, #requests do
  local charges = charges_of[requests[request]]
  local count, start, failed, denied, others, said, late = #charges, size, false, false, false, nil, nil
  for place = 1, count do
    local charge, key = charges[place], KEYS[keys + place]
    if charge.algorithm and charge.algorithm.run then
      late, writes[place] = late or {}, nil
      late[#late + 1] = place
      reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = UNCHANGED, charge.burst, 0, -1
    elseif charge.algorithm then
      local outcome, remaining, retry, reset, change, detail, counts = charge.algorithm.decide(key, charge)
      if outcome then
        denied, others, writes[place], counts_denied[place] = denied or outcome == DENIED, true, change, counts
        reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = outcome, remaining, retry, reset
        if detail then
          said = said or {}
          said[place] = detail
        end
      else
        failures[request], failed = remaining, true
      end
    else
      local bucket = bucket_of(key, charge)
      local level, position, failure = level_now(bucket, charge)
      if failure then
        failures[request], failed = redis.error_reply(failure), true
      else
        local outcome, after, retry, change = decided(charge, level, position)
        failed = failed or bucket.failure
        denied = denied or outcome == DENIED
        held[place], levels[place], positions[place], writes[place] = bucket, level, position, change
        reply[size + 1] = outcome
        local remaining = floor((charge.capacity - after) / charge.token)
        reply[size + 2] = remaining > 0 and remaining or 0
        reply[size + 3] = retry
        reply[size + 4] = reset_after(charge, position, after)
      end
    end
    size = size + 4
  end
  for turn = 1, late and #late or 0 do
    if not failed and not denied then
      local place = late[turn]
      local charge, at = charges[place], start + 4 * (place - 1)
      local outcome, detail = charge.algorithm.run(KEYS[keys + place], charge)
      if not outcome then
        failures[request], failed = detail, true
      else
        said = said or {}
        said[place], denied, reply[at + 1] = detail, outcome == DENIED, outcome
        if outcome ~= ALLOWED then
          reply[at + 2], reply[at + 3] = 0, -1
        end
      end
    end
  end
  if others and not failed then
    failures[request] = commit(charges, denied)
    failed = failures[request]
  end
  if failed then
    failing = true
  elseif denied then
    for place = 1, count do
      local charge, at = charges[place], start + 4 * (place - 1)
      if reply[at + 1] == ALLOWED then
        reply[at + 1], reply[at + 3] = UNCHANGED, 0
        if charge.algorithm then
          local detail
          reply[at + 2], reply[at + 4], detail = charge.algorithm.standing(KEYS[keys + place], charge)
          if detail then
            say(place, detail)
          end
        else
          reply[at + 2] = max(floor((charge.capacity - levels[place]) / charge.token), 0)
          reply[at + 4] = reset_after(charge, positions[place], levels[place])
        end
      elseif said and said[place] then
        say(place, said[place])
      end
    end
  else
    for place = 1, count do
      local charge, bucket, position, level = charges[place], held[place], positions[place], writes[place]
      if said and said[place] then
        say(place, said[place])
      end
      if level and not charge.algorithm then
        write(KEYS[keys + place], bucket, level, charge)
        -- A bucket that was made full is forgotten, its time included. Otherwise the time never goes back: a clock that
        -- stepped back would earn the interval twice.
        if level == 0 or bucket.since < now then
          bucket.since = now
        end
        if charge.window and level > 0 then
          bucket.since, bucket.written = position.start, windows.written(charge, position)
          bucket.full = windows.time_for(charge, position, min(level, charge.burst)) + position.at - now
        end
      end
    end
  end
  keys = keys + count
end
for _, other in pairs(made) do
  corrupt = corrupt + (other.corrupt or 0)
end
reply[1] = corrupt

-- Each bucket is written once, however many requests have charged it. The value and its expiry are one command, so no
-- crash leaves a key that stays for ever. The expiry is rounded up: a key that is gone early is a bucket that is full
-- early.
for place = 1, #dirty do
  local key = dirty[place]
  local bucket, done = buckets[key], nil
  if bucket.level == 0 and not bucket.elevated then
    done = pcall('DEL', key)
  else
    local text = format(SINCE_LEVEL, bucket.since, bucket.level) .. bucket.written.numbers .. (bucket.elevated or '')
    if bucket.is_redated then
      -- It expires later than it need.
      done = pcall('SET', key, text, 'KEEPTTL')
    elseif given then
      done = pcall('SET', key, text, 'PX', GIVEN_CLOCK_EXPIRY)
    elseif bucket.full == -1 or not bucket.full and bucket.written.drain == 0 then
      done = pcall('SET', key, text)
    else
      local full = bucket.full or bucket.since - now + time_for(bucket.level, bucket.written.drain)
      done = pcall('SET', key, text, 'PX', format(INTEGER, max(1, ceil((full + min(full, RETENTION)) / 1000))))
    end
  end
  if type(done) == 'table' and done.err then
    bucket.failure, failing = done, true
  end
end

if not failing then
  reply[size + 1] = echo or details
  reply[size + 2] = echo and details
  return reply
end
local answers, from = { corrupt }, 1
keys = 0
for request = 1, #requests do
  local numbers, failure = 4 * #charges_of[requests[request]], failures[request]
  for place = 1, numbers / 4 do
    local bucket = buckets[KEYS[keys + place]]
    failure = failure or bucket and bucket.failure
  end
  if failure then
    answers[#answers + 1] = failure
  else
    for place = 1, numbers do
      answers[#answers + 1] = reply[from + place]
    end
  end
  from, keys = from + numbers, keys + numbers / 4
end
answers[#answers + 1] = echo
answers[#answers + 1] = details
return answers
