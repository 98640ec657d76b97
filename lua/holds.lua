-- Tokens that are held for requests under way, for gcra.lua and fixed_window.lua. levels.lua includes this file.
--
-- A spend that ends in `!ID:TTL` takes nothing if it fits: its cost is held under ID for TTL microseconds. A spend_up_to that ends in
-- `!ID` ends that hold, and then takes its cost. Without the hold it takes nothing, so a hold is settled once, by any gateway. ID is
-- 32 hexadecimal digits.
--
-- The text of a bucket with holds ends in " !<held>:<next>:<last>:<count>;" and "<id>:<end>:<tokens>;" for each of them: the tokens
-- that are held, when the first hold ends, or 0, and when the last one does, in microseconds since the Unix epoch. What is held is
-- missing from the capacity for everybody, and drains at no time. A hold that has ended has 0 tokens. It is kept for LATE, so that it
-- can still be settled, if there is room: a bucket has at most MOST_HOLDS.

-- Shared

local MOST_HOLDS, LONGEST_HOLD, LATE = 1000, 3600000000, 600000000

-- The functions for buckets and charges with holds, which few calls need.
local holding_functions
function holding()
  if holding_functions then
    return holding_functions
  end
  local holding = {}
  holding_functions = holding

  -- The holds without the one of this id, and without those that are forgotten, or that have ended if `drop_ended`; nil for none.
  local function without(holds, id, drop_ended)
    local kept, held, first, last = {}, 0, 0, 0
    for other, ending, tokens in string.gmatch(holds.entries, '(%x+):(%d+):(%d+);') do
      -- The clock may have stepped back.
      ending, tokens = min(tonumber(ending), now + LONGEST_HOLD), tonumber(tokens)
      tokens = ending > now and tokens or 0
      if other ~= id and (tokens > 0 or not drop_ended and ending + LATE > now) then
        kept[#kept + 1] = format('%s:' .. INTEGER .. ':' .. INTEGER .. ';', other, ending, tokens)
        last = max(last, ending)
        if tokens > 0 then
          held, first = held + tokens, first == 0 and ending or min(first, ending)
        end
      end
    end
    return #kept > 0 and { held = held, first = first, last = last, count = #kept, entries = table.concat(kept) } or nil
  end

  -- Takes the holds from the end of the text of a key's bucket; returns the rest.
  function holding.read(bucket, text, key)
    local rest, held, first, last, count, entries = match(text, '^(.-) !(%d+):(%d+):(%d+):(%d+);([%x:;]+)$')
    if not rest then
      return text
    end
    local holds = {
      held = tonumber(held), first = tonumber(first), last = tonumber(last), count = tonumber(count), entries = entries,
    }
    if holds.last > now + LONGEST_HOLD then
      -- They are written so even if nothing else is.
      bucket.dirty, bucket.is_redated = true, true
      dirty[#dirty + 1] = key
    end
    local has_changed = bucket.dirty or holds.held > 0 and holds.first <= now
    bucket.holds = has_changed and without(holds) or not has_changed and holds or nil
    return rest
  end

  function holding.text(holds)
    local numbers = ' !' .. INTEGER .. ':' .. INTEGER .. ':' .. INTEGER .. ':%d;'
    return format(numbers, holds.held, holds.first, holds.last, holds.count) .. holds.entries
  end

  -- How long a key is needed for its holds, in microseconds.
  function holding.kept(holds)
    return holds.last + LATE - now
  end

  -- The results of `decided`, and the tokens that are held meanwhile.
  function holding.decided(bucket, charge, token, level, position, least)
    local holds, hold = bucket.holds, charge.hold
    local held, is_found = holds and holds.held or 0, false
    if hold and not hold.ttl then
      local ending, tokens = match(holds and holds.entries or '', hold.id .. ':(%d+):(%d+);')
      ending = tonumber(ending)
      if not ending or ending + LATE <= now then
        return UNCHANGED, level, 0, nil, held
      end
      held, is_found = held - (ending > now and tonumber(tokens) or 0), true
    elseif hold and holds and holds.count >= MOST_HOLDS then
      local running = without(holds, nil, true)
      held = running and running.count >= MOST_HOLDS and charge.burst or held
    end
    local outcome, after, retry, change = decided(charge, token, level, position, least, held)
    if (outcome == DENIED or outcome == SHORT) and holds and holds.held > 0 and charge.cost <= charge.burst then
      local wait = holds.first - now
      retry = (retry == -1 or retry > wait) and wait or retry
    elseif is_found then
      return ALLOWED, after, retry, change or level + (position and position.excess or 0), held
    end
    return outcome, after, retry, change, held
  end

  -- Makes or ends the hold of a charge. Returns the level to write.
  function holding.commit(bucket, charge, level)
    local holds, hold = bucket.holds, charge.hold
    if not hold.ttl then
      bucket.holds = without(holds, hold.id)
      return level
    end
    if holds and holds.count >= MOST_HOLDS then
      holds = without(holds, nil, true)
    end
    holds = holds or { held = 0, first = 0, last = 0, count = 0, entries = '' }
    -- The sum may not fit into 2^53.
    local ending = min(now + hold.ttl, EXACT - 1)
    bucket.holds = {
      held = holds.held + charge.cost, first = holds.first == 0 and ending or min(holds.first, ending),
      last = max(holds.last, ending), count = holds.count + 1,
      entries = holds.entries .. format('%s:' .. INTEGER .. ':' .. INTEGER .. ';', hold.id, ending, charge.cost),
    }
    return bucket.found
  end

  return holding
end
