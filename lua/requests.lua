-- Reads the requests of a call, decides them one after the other, and replies: the end of decide.lua and of each algorithm's
-- file. `arguments` is as ARGV in decide.lua, and USAGE names what is expected. decide.lua documents the contract between this
-- file and the algorithms.

-- Shared

-- The algorithm that WORD names, and its parameters; nothing if the name is unknown or the parameters are invalid.
function algorithm_of(word)
  local name, text = 'gcra', word
  if match(word, '%D') then
    name, text = match(word, '^([%l_]+):(.*)$')
    if not name or not made[name] and not (load and load(name)) then
      name, text = 'fixed_window', word
    end
  end
  local algorithm = made[name] or load and load(name)
  local parameters = algorithm and algorithm.parse(text)
  if parameters then
    return algorithm, parameters
  end
end

-- The charges of each request, and of each text; most requests of a call have the same text.
local charges_of, charges_of_text, named = {}, {}, 0
local echo, last = arguments[#arguments], #arguments
if echo and sub(echo, 1, 1) == '#' then
  last = last - 1
else
  echo = nil
end
local only = last >= 3 and not match(arguments[3], ' ') and table.concat(arguments, ' ', 3, last)
local effective_from = tonumber(arguments[2])
local count_of_requests = only and 1 or last - 2
for request = 1, count_of_requests do
  local text = only or arguments[request + 2]
  local charges = charges_of_text[text]
  if not charges then
    charges = {}
    charges_of_text[text] = charges
    local at, is_late = 1, false
    repeat
      local burst, numbers, count, word, cost, mode, rest = match(text, '^(%d+) ((%d+) (%S+)) (%d+) (%S+) ?()', at)
      if not burst then
        -- The keys of later requests cannot be told from this one's.
        return redis.error_reply('ERR usage: ' .. USAGE)
      end
      local algorithm, parameters
      count = tonumber(count)
      if count and count > 0 and count < EXACT then
        algorithm, parameters = algorithm_of(word)
      end
      if not parameters then
        charges.failure = redis.error_reply('ERR usage: ' .. USAGE)
      end
      local from, taken, told, lease, hold, patience, delay = effective_from, nil, false, nil, nil, nil, nil
      local role, group
      if mode ~= 'spend' and match(mode, '[/~@+=!-]') then
        local plain, of, mark, instant, changed, leases = match(mode, '^([%l_]+)(/?[b-fs]?%d*)(~?)(%d*)@?(%d*)(.*)$')
        role, group = match(of or '', '^/([b-fs]?)(%d+)$')
        plain = (of == '' or group) and plain
        patience, delay = match(leases or '', '^=(%d+):(%d+)$')
        leases = patience and '' or leases
        local held_by, ttl = match(leases or '', '^!(%x+):?(%d*)$')
        hold = holding and held_by and { id = held_by, ttl = tonumber(ttl) }
        leases = hold and '' or leases
        lease = leasing and plain and leases ~= '' and leasing().parse(leases) or nil
        mode = plain and (leases == '' or lease) and plain or mode
        taken, from = tonumber(instant), max(from, tonumber(changed) or 0)
        told = mark ~= '' and not taken
      end
      local look = mode == 'look'
      mode = look and 'check' or mode
      if mode ~= 'spend' and mode ~= 'check' and mode ~= 'spend_only' and mode ~= 'spend_up_to' and mode ~= 'refund'
        and mode ~= 'reset' then
        charges.failure = redis.error_reply('ERR unknown mode ' .. mode
          .. ': spend, check, look, spend_only, spend_up_to, refund or reset')
      end
      -- A table that is created with its fields does not grow.
      local charge = {
        burst = tonumber(burst), count = count, numbers = numbers, algorithm = algorithm, parameters = parameters,
        cost = tonumber(cost), mode = mode, from = from,
        short = (group and role ~= '' or mode == 'spend_only') and SHORT or DENIED,
      }
      if group then
        charge.group, charge.candidate = group, role ~= '' and role ~= 's' and role .. group or nil
        if role == 'b' then
          charge.strike, charges.strikes = true, true
        end
      end
      if taken then
        charge.taken = taken
      elseif told then
        charge.told = true
      end
      if look then
        charge.look = true
      end
      if lease then
        charge.lease = lease
      end
      if hold then
        charge.hold = hold
      end
      if patience then
        charge.patience, charge.delay = tonumber(patience), tonumber(delay)
      end
      charges[#charges + 1] = charge
      at, is_late = rest, is_late or algorithm and algorithm.late
    until at > #text
    if is_late and not charges.failure then
      local early, late = {}, {}
      for place, charge in ipairs(charges) do
        local part = charge.algorithm.late and late or early
        part[#part + 1] = place
      end
      for _, place in ipairs(late) do
        early[#early + 1] = place
      end
      charges.order = early
    end
  end
  if charges.failure and count_of_requests == 1 then
    return charges.failure
  end
  charges_of[request] = charges
  named = named + #charges
end
-- The keys of quotas follow.
if named == 0 or named > #KEYS or named < #KEYS and not made.elevated then
  return redis.error_reply('ERR usage: ' .. USAGE)
end

local failures, failing = {}, false
-- Of the request at hand: what its charges would change, and which of them do so even if it is denied.
local changes, counts_denied = {}, {}
local reply, size, keys, details = { 0 }, 1, 0, nil
for request = 1, count_of_requests do
  turn = request
  local charges = charges_of[request]
  local charge, count = charges[1], #charges
  if charges.failure then
    failures[request], failing = charges.failure, true
  elseif count == 1 and charge.algorithm.finish and not charge.strike then
    -- What the other branch does, in fewer steps: most requests have one charge, of an algorithm whose commits cannot fail.
    local algorithm, key = charge.algorithm, KEYS[keys + 1]
    local outcome, remaining, retry, reset, change, detail = algorithm.decide(key, charge)
    if outcome then
      reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = outcome, remaining, retry, reset
      if change ~= nil and outcome ~= DENIED then
        algorithm.commit(key, charge, change)
      end
      if detail then
        details = details or {}
        details[#details + 1] = keys
        details[#details + 1] = detail
      end
    else
      failures[request], failing = remaining, true
    end
  else
    local order = charges.order
    local failed, denied, immediate, said = false, false, false, nil
    -- The group that alone denies, and what is short and denies nothing: groups in shadow, and candidates. All groups that do not
    -- fit, if something counts that.
    local denier, short, failing_groups = nil, nil, charges.strikes and {}
    for turn = 1, count do
      local place = order and order[turn] or turn
      local charge, at = charges[place], size + 4 * (place - 1)
      local algorithm = charge.algorithm
      local outcome, remaining, retry, reset, change, detail, counts = UNCHANGED, charge.burst, 0, -1, nil, nil, nil
      if not algorithm.late or not failed and not denied then
        outcome, remaining, retry, reset, change, detail, counts = algorithm.decide(KEYS[keys + place], charge)
      end
      changes[place], counts_denied[place] = change, counts
      if outcome then
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = outcome, remaining, retry, reset
        if outcome == DENIED then
          denier, denied = not denied and charge.group or denied and denier == charge.group and denier or nil, true
        elseif outcome == SHORT then
          short = short or {}
          short[charge.candidate or charge.group or place] = true
        end
        if failing_groups and not charge.candidate and (outcome == DENIED or outcome == SHORT) then
          failing_groups[charge.group or place] = true
        end
        immediate = immediate or change ~= nil and not algorithm.finish
        if detail then
          said = said or {}
          said[place] = detail
        end
      else
        failures[request], failed = remaining, true
      end
    end
    -- The charges that take nothing, even if they fit: the rule of taking in decide.lua.
    local barred
    if (denied or short or failing_groups) and not failed then
      barred = {}
      for place = 1, count do
        local charge, outcome = charges[place], reply[size + 4 * (place - 1) + 1]
        local is_tied = short and charge.short == SHORT and outcome ~= SHORT
        if charge.strike then
          barred[place] = not failing_groups[charge.group]
        else
          barred[place] = denied and not (charge.candidate and denier == charge.group)
            or is_tied and short[charge.candidate or charge.group or place]
        end
      end
    end
    if immediate and not failed then
      for place = 1, count do
        local charge, change = charges[place], changes[place]
        if change ~= nil and not charge.algorithm.finish and (counts_denied[place] or not (barred and barred[place])) then
          local failure = charge.algorithm.commit(KEYS[keys + place], charge, change)
          if failure then
            failures[request], failed = failure, true
            break
          end
        end
      end
    end
    if failed then
      failing, said = true, nil
    else
      for place = 1, barred and count or 0 do
        local charge, at = charges[place], size + 4 * (place - 1)
        if barred[place] and reply[at + 1] <= ALLOWED then
          local remaining, reset, detail = charge.algorithm.standing(KEYS[keys + place], charge)
          reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = UNCHANGED, remaining, 0, reset
          if said or detail then
            said = said or {}
            said[place] = detail
          end
        end
      end
      for place = 1, count do
        local charge, change = charges[place], changes[place]
        if change ~= nil and charge.algorithm.finish and not (barred and barred[place]) then
          charge.algorithm.commit(KEYS[keys + place], charge, change)
        end
      end
    end
    if said then
      for place = 1, count do
        if said[place] then
          details = details or {}
          details[#details + 1] = keys + place - 1
          details[#details + 1] = said[place]
        end
      end
    end
  end
  size, keys = size + 4 * count, keys + count
end
local errors
for _, algorithm in pairs(made) do
  if algorithm.finish then
    errors = algorithm.finish(errors)
  end
end
reply[1] = corrupt
if not failing and not errors then
  reply[size + 1] = echo or details
  reply[size + 2] = echo and details
  return reply
end

-- A request that failed has its error in place of its integers.
local answers, from = { corrupt }, 1
keys = 0
for request = 1, count_of_requests do
  local count, failure = #charges_of[request], failures[request]
  for place = 1, count do
    failure = failure or errors and errors[KEYS[keys + place]]
  end
  if failure then
    answers[#answers + 1] = failure
  else
    for number = 1, 4 * count do
      answers[#answers + 1] = reply[from + number]
    end
  end
  from, keys = from + 4 * count, keys + count
end
answers[#answers + 1] = echo
answers[#answers + 1] = details
return answers
