-- GCRA with elevated numbers, which switch on when a bucket is empty, for a while and a number of times per month.
--
--   redis-cli --eval <(lua/assemble elevated.lua) KEY [QUOTA] , NOW EFFECTIVE_FROM BURST TOKEN WORD COST MODE
--
-- Spend 1 of 20 per second, or of 100 per second for 15 minutes, 5 times a month, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble elevated.lua) weir:{0}:PerAddress:192.0.2.1 , '' 0 \
--     20 50000 elevated:1:100:10000:1:900000000:5 1 spend
--
-- NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua, and BURST and TOKEN those of gcra.lua.
--   WORD  elevated:DRAIN:BURST:TOKEN:DRAIN:SPAN:ACTIVATIONS[:NAME]
--         the DRAIN of gcra.lua; the elevated BURST, TOKEN and DRAIN; for how many microseconds they switch on, and how often
--         in a month of UTC; and the name of a quota, if it counts the activations of several buckets
-- They switch on for a charge that is denied without them and that fits once what is used is deducted from them. Until SPAN is
-- over they replace the limit's numbers; then what is left is cut to BURST. `check` answers as `spend` would. `spend_up_to`
-- switches them on only if no token is left. `reset` fills the bucket, and changes neither the activation nor the month's count.
-- The details are { 'elevated', TRIGGERED, ACTIVE, LEFT }: 1 if this charge has switched them on, 1 if they are on, and how
-- often they may still switch on this month, -1 unless this charge has switched them on.
--
-- A bucket is that of levels.lua, "<since> <level> <token> <drain>", by the numbers that hold. If they are on or were this month,
-- " <until> <activations> <month end>" follows: until when they are on, 0 if that is over, and how often they switched on before
-- the month's end, without what a quota counts. gcra.lua carries over what is used and drops the rest, so a limit may gain and lose
-- elevated numbers. The key lives until the bucket is full, the numbers are off and the month is over.
--
-- A quota is a string "<activations> <month end>". Its key is the beginning of KEY up to its hash tag (`weir:{0}:`) and `!quota:NAME`;
-- a cluster must be told it as QUOTA. It lives until the month is over.

--[[ include prelude.lua ]]
--[[ include levels.lua ]]
local algorithm = {}

-- Shared

local DAY = 86400000000
local WORDS = ' ' .. INTEGER .. ' ' .. INTEGER .. ' ' .. INTEGER
local QUOTA = INTEGER .. ' ' .. INTEGER

-- The quotas of the call, by key.
local quotas = {}

-- The numbers behind the name in WORD.
function algorithm.parse(text)
  local drain, burst, token, other, span, most, quota = match(text, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)(.*)$')
  local is_valid = drain and (quota == '' or match(quota, '^:.'))
  if is_valid and tonumber(burst) > 0 and tonumber(token) > 0 and tonumber(most) > 0 then
    return {
      drain = tonumber(drain), plain = drain, burst = tonumber(burst), token = tonumber(token), other = tonumber(other),
      numbers = token .. ' ' .. other, span = tonumber(span), most = tonumber(most), quota = quota ~= '' and quota,
    }
  end
end

-- The charge under the limit's own numbers alone, and under the elevated ones, as levels.lua takes them.
local function plain(charge)
  if not charge.base then
    local words, cost, mode = charge.parameters, charge.cost, charge.mode
    local look, short = charge.look, charge.short
    charge.base = {
      burst = charge.burst, count = charge.count, parameters = words.drain, algorithm = algorithm,
      numbers = format(INTEGER, charge.count) .. ' ' .. words.plain, cost = cost, mode = mode, from = charge.from,
      look = look, short = short,
    }
    charge.raised = {
      burst = words.burst, count = words.token, parameters = words.other, algorithm = algorithm,
      numbers = words.numbers, cost = cost, mode = mode, from = charge.from, look = look, short = short,
    }
  end
  return charge.base, charge.raised
end

-- The end of the month of UTC that holds an instant.
local function month_end(at)
  local today = floor(at / DAY)
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

-- The level by the limit's own numbers when the elevated ones end at `level`: what is left stays, as far as it fits. No product is
-- 2^53 or more, and a sum that is exceeds the capacity.
local function cut(base, raised, level)
  local more, capacity = raised.burst - base.burst, base.burst * base.count
  if more >= 0 then
    local used = level - more * raised.count
    return used > 0 and rare().reweighed(used, base.count, raised.count, capacity) or 0
  end
  return min(rare().reweighed(level, base.count, raised.count, capacity) - more * base.count, capacity)
end

-- A quota as earlier requests of the call have left it. `asked` and `asked_end` are the same with what earlier charges of the
-- request at hand would use.
local function quota_of(key, name)
  key = (match(key, '^[^{]*{[^}]*}:') or '') .. '!quota' .. name
  local quota = quotas[key]
  if not quota then
    quota = { activations = 0, month_end = 0 }
    quotas[key] = quota
    local text = pcall('GET', key)
    if type(text) == 'table' then
      quota.failure = not discarded(key, text) and text or nil
    elseif text then
      local activations, over = match(text, '^(%d+) (%d+)$')
      if activations and tonumber(activations) < EXACT and tonumber(over) < EXACT then
        quota.activations, quota.month_end = tonumber(activations), tonumber(over)
      else
        corrupt = corrupt + 1
      end
    end
  end
  if quota.turn ~= turn then
    quota.turn, quota.asked, quota.asked_end = turn, quota.activations, quota.month_end
  end
  return quota
end

-- A bucket as a charge finds it: the numbers that hold, the level by them, the end of the elevated ones, how often they switched
-- on this month and when it ends, by the quota if there is one. A clock that stepped back stands still until it has caught up.
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
  local own, own_end = found.activations, found.month_end
  if charge.parameters.quota then
    local quota = quota_of(key, charge.parameters.quota)
    if quota.failure then
      return nil, quota.failure
    end
    local counts = found.instant < quota.asked_end
    found.quota, found.own, found.own_end = quota, own, own_end
    found.activations, found.month_end = counts and quota.asked or 0, counts and quota.asked_end or 0
  end
  if ending > found.instant then
    found.by, found.ending, found.level = raised, ending, level_at(bucket, raised, now, key)
  elseif ending == 0 then
    if bucket.written.numbers ~= base.numbers then
      found.full_in = rare().full_in(bucket, charge.from)
    end
    -- Activations keep it until the month is over.
    if found.full_in and own > 0 then
      found.full_in = max(found.full_in, own_end - found.instant)
    end
    if found.full_in and found.full_in <= 0 then
      found.full_in, found.level = nil, 0
    else
      found.level = level_at(bucket, base, now, not found.full_in and key or nil)
    end
  else
    local level = cut(base, raised, level_at(bucket, raised, ending, nil))
    found.level = drained(level, base.parameters, found.instant - ending)
  end
  found.level = bucket.leased and max(found.level, leasing().held(bucket, found.by)) or found.level
  return found
end

-- Microseconds until the elevated numbers can be switched on with `level` used, -1 for never. Deducted from their burst,
-- the tokens used leave room for the cost if they are `burst - cost` at most, and have to drain to that first.
local function until_activation(found, charge, level)
  -- A charge that takes what is there needs room for one token.
  local cost = charge.mode == 'spend_up_to' and min(charge.cost, 1) or charge.cost
  local base, room = charge.base, charge.raised.burst - cost
  if room < 0 then
    return -1
  end
  -- A product beyond 2^53 may be rounded, but is more than the level either way.
  local wait = time_for(max(level - room * base.count, 0), base.parameters)
  if wait >= 0 and found.activations >= charge.parameters.most then
    return max(wait, found.month_end - found.instant)
  end
  return wait
end

-- A bucket as it is when the elevated numbers end, if nothing else happens until then.
local function at_end(found, charge, level)
  local base, raised = charge.base, charge.raised
  local left = cut(base, raised, drained(level, raised.parameters, found.ending - found.instant))
  local counts = found.ending < found.month_end
  return {
    by = base, instant = found.ending, ending = 0, level = left,
    activations = counts and found.activations or 0, month_end = counts and found.month_end or 0,
  }
end

-- Microseconds until a charge fits with `level` used by the numbers that hold, -1 for never.
local function until_fits(found, charge, level)
  local by, plain = found.by, -1
  if charge.cost <= by.burst then
    plain = time_for(max(level - (by.burst - charge.cost) * by.count, 0), by.parameters)
  end
  if found.ending == 0 then
    local wait = until_activation(found, charge, level)
    return (plain == -1 or wait >= 0 and wait < plain) and wait or plain
  end
  local left = found.ending - found.instant
  if plain >= 0 and plain < left then
    return plain
  end
  local ended = at_end(found, charge, level)
  local wait = until_fits(ended, charge, ended.level)
  -- A sum beyond 2^53 may be rounded, but never to below it.
  return wait >= 0 and min(left + wait, EXACT - 1) or -1
end

-- Microseconds until the elevated numbers can be switched on for a charge in a bucket that counts as full later, -1 for never.
local function until_raised_when_full(found, charge)
  local instant = found.instant + found.full_in
  local counts = instant < found.month_end
  local full = { instant = instant, activations = counts and found.activations or 0, month_end = found.month_end }
  local wait = until_activation(full, charge, 0)
  return wait >= 0 and found.full_in + wait or -1
end

-- Switches the elevated numbers on. What is used stays used.
local function activate(found, charge)
  local base, raised = charge.base, charge.raised
  found.by = raised
  found.level = rare().reweighed(found.level, raised.count, base.count, raised.burst * raised.count)
  if found.month_end == 0 then
    found.month_end = month_end(found.instant)
  end
  found.activations = found.activations + 1
  if found.quota then
    found.quota.asked, found.quota.asked_end, found.is_counted = found.activations, found.month_end, true
  end
  -- The sum may not fit into 2^53.
  local span = charge.parameters.span
  found.ending = span < EXACT - found.instant and found.instant + span or EXACT - 1
end

-- What no charge gives back, because it is leased under other rules.
local function least(found)
  return found.bucket.leased and leasing().held(found.bucket, found.by) or 0
end

local function details(found, triggered, left)
  return { 'elevated', triggered and 1 or 0, found.ending > 0 and 1 or 0, left }
end

local function remaining(by, level)
  return max(floor((by.burst * by.count - level) / by.count), 0)
end

function algorithm.decide(key, charge)
  local found, failure = find(key, charge)
  if not found then
    return nil, failure
  end
  local outcome, after, retry, level = decided(found.by, found.by.count, found.level, nil, least(found))
  local mode, triggered, left = charge.mode, false, -1
  local room = found.by.burst * found.by.count - found.level
  if found.ending == 0 and mode == 'spend_up_to' and charge.cost > 0 and room < found.by.count
    and until_activation(found, charge, found.level) == 0 then
    triggered = true
    activate(found, charge)
    left = charge.parameters.most - found.activations
    outcome, after, retry, level = decided(found.by, found.by.count, found.level, nil, least(found))
  elseif mode == 'spend' or mode == 'check' or mode == 'spend_only' then
    triggered = found.ending == 0 and outcome ~= ALLOWED and until_activation(found, charge, after) == 0
    if triggered then
      activate(found, charge)
      left = charge.parameters.most - found.activations
      outcome, after, retry, level = decided(found.by, found.by.count, found.level, nil, least(found))
    end
    if charge.cost > 0 and not (charge.look and outcome == ALLOWED) then
      retry = until_fits(found, charge, after)
    end
  end
  found.write = level
  local reset = time_for(after, found.by.parameters)
  if found.full_in and not level and not triggered then
    local is_short = outcome > ALLOWED and charge.cost > 0 and retry ~= 0
    retry, reset = full_after(found.full_in, charge, outcome, retry, reset)
    local renewed = is_short and until_raised_when_full(found, charge) or -1
    retry = (renewed >= 0 and (retry == -1 or renewed < retry)) and renewed or retry
  end
  return outcome, remaining(found.by, after), retry, reset, level and found, details(found, triggered, left)
end

function algorithm.standing(key, charge)
  local found = find(key, charge)
  local reset = time_for(found.level, found.by.parameters)
  if found.full_in and (reset == -1 or reset > found.full_in) then
    reset = found.full_in
  end
  return remaining(found.by, found.level), reset, details(found, false, -1)
end

-- Counts an activation in its quota: without those that other charges of the request were only asked for.
local function count(key, found)
  local quota = found.quota
  if found.instant >= quota.month_end then
    quota.activations, quota.month_end = 0, month_end(found.instant)
  end
  quota.activations, quota.bucket = quota.activations + 1, key
end

function algorithm.commit(key, charge, found)
  if found.is_counted then
    count(key, found)
  end
  if found.quota then
    found.activations, found.month_end = found.own, found.own_end
  end
  local bucket, base, level, drain = found.bucket, charge.base, found.write, found.by.parameters
  -- When the bucket is full and the elevated numbers are off; spans, whose sums may be beyond 2^53 and are rounded then.
  local full = time_for(level, drain)
  if found.ending > 0 then
    local span = found.ending - found.instant
    full = time_for(cut(base, charge.raised, drained(level, drain, span)), base.parameters)
    full = full >= 0 and span + full or -1
  end
  if full >= 0 and found.activations > 0 then
    full = max(full, found.month_end - found.instant)
  end
  local is_plain = found.ending == 0 and found.activations == 0
  -- A bucket that is made full is forgotten, its time included.
  local since = is_plain and level == 0 and now or found.instant
  -- Elevated numbers know no holds.
  bucket.holds = nil
  keep(key, bucket, level, found.by, since, full >= 0 and full + (found.instant - now) or -1)
  if not is_plain then
    bucket.elevated = format(WORDS, found.ending, found.activations, found.month_end)
  end
end

function algorithm.finish(errors)
  errors = finish(errors)
  for key, quota in pairs(quotas) do
    if quota.bucket then
      local text = format(QUOTA, quota.activations, quota.month_end)
      local done = pcall('SET', key, text, 'PX', kept_for(quota.month_end - now))
      if type(done) == 'table' and done.err then
        errors = errors or {}
        errors[quota.bucket] = done
      end
    end
  end
  return errors
end

-- Alone

local USAGE = 'KEY [QUOTA] , NOW EFFECTIVE_FROM BURST TOKEN WORD COST MODE'
local arguments = ARGV
made.elevated = algorithm
--[[ include requests.lua ]]
