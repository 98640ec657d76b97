-- Leases: tokens that a gateway takes ahead of use, for gcra.lua and fixed_window.lua. levels.lua includes this file.
--
-- A charge may end in a wish and in the end of a lease, after `~SPAN` and `@INSTANT`:
--   +TOKENS:SPAN:DEMAND   if the charge is allowed, up to TOKENS more are leased, for SPAN microseconds; the gateway expects to use
--                         DEMAND in such a span
--   -GRANTED:LEFT:UNTIL   a lease of GRANTED tokens, which ran until UNTIL, has ended, and LEFT of them were not used. After
--                         UNTIL nothing comes back.
-- The details of a grant are { 'lease', TOKENS, SPAN, UNTIL }: how many, for how many microseconds from now, and until when by
-- the clock of this call. `remaining`, `retry` and `reset` are those of the charge without the lease.
--
-- The bucket's text then ends in " +<leased>:<until>": the tokens that gateways hold, and until when their leases run. It ends in
-- " -<leased>:<until>" if the bucket's numbers have changed meanwhile: the level may have been cut, so nothing of these leases comes
-- back. A lease that is granted while others run ends with them, and a lease ends with its window.
--
-- No span has more use than the limit allows, whenever gateways use their tokens. Let `used` be the level of a bucket that counts
-- each token when it is used, and `unused` what gateways may still use of their leases. Then always
--   level >= used + unused   and   leased >= unused
-- and since level <= capacity, all that is unused may be used at any instant: `used` stays within the capacity.
--   A grant adds the same to level, leased and unused. Use moves tokens from unused to used.
--   Time takes the same from level and used, but leaves level >= leased and used >= 0:
--     max(level - drained, leased) >= max(used + unused - drained, unused) = max(used - drained, 0) + unused
--   So do refunds and resets.
--   The end of a lease takes LEFT from level and unused, and at least as much, GRANTED, from leased; level stays at leased or above.
--   When all leases end, unused is 0, and what was leased drains from then on.
-- A gateway counts its lease from before it asked, so it stops before UNTIL.
--
-- The price is tokens that were used early and do not drain until their lease ends. At most a quarter of the burst is leased at a
-- time, so a request is denied only if a bucket of three quarters of the burst would deny it that counts leased tokens as used from
-- the start. At most a quarter of what is left is leased at once, so ids close to their limit get small leases. What a dead gateway
-- has leased counts until the leases end. While holds.lua holds tokens of a bucket, no lease of it begins.

-- Shared

-- The shortest and the longest lease, in microseconds. A shorter one is over before it saves a call.
local SHORTEST_LEASE, LONGEST_LEASE = 1000, 10000000

-- The functions for buckets and charges with leases, which few calls need.
local leasing_functions
function leasing()
  if leasing_functions then
    return leasing_functions
  end
  local leasing = {}
  leasing_functions = leasing

  -- Takes what is leased from the end of a bucket's text; returns the rest.
  function leasing.read(bucket, text)
    local rest, mark, leased, ending = match(text, '^(.*) ([+-])(%d+):(%d+)$')
    leased, ending = tonumber(leased), tonumber(ending)
    if not rest or leased >= EXACT or ending >= EXACT then
      return text
    end
    bucket.leased, bucket.lease_end, bucket.keeps_leases = leased, ending, mark == '-'
    return rest
  end

  -- What a charge says of leases; nil if that is invalid.
  function leasing.parse(text)
    local wish, ended = match(text, '^(%+?[%d:]*)(%-?[%d:]*)$')
    local tokens, span, demand = match(wish or '', '^%+(%d+):(%d+):(%d+)$')
    local granted, left, ending = match(ended or '', '^%-(%d+):(%d+):(%d+)$')
    if not wish or (wish ~= '' and not tokens) or (ended ~= '' and not granted) then
      return nil
    end
    return {
      tokens = tonumber(tokens), span = tokens and max(1, min(tonumber(span), LONGEST_LEASE)), demand = tonumber(demand),
      granted = tonumber(granted), left = tonumber(left), ending = tonumber(ending),
    }
  end

  -- The level and what is leased once the lease is over that a charge ends, if it still runs.
  function leasing.ended(bucket, charge, token, level, capacity, is_same, excess)
    local lease, leased, ending = charge.lease, bucket.leased or 0, bucket.lease_end or 0
    if ending <= now then
      return level, 0, 0, false
    end
    local granted, left = lease.granted, lease.left
    -- All leases of a bucket end together. One that ends at another instant is of a bucket that was lost.
    local is_over = lease.ending ~= ending
    -- With more used than the burst, another gateway has a higher one.
    if not granted or is_over or granted > leased or left > granted or excess > 0 then
      return level, leased, ending, false
    end
    leased = leased - granted
    if bucket.keeps_leases or not is_same then
      left = 0
    end
    return max(level - left * token, min(leased * token, capacity)), leased, leased > 0 and ending or 0, true
  end

  -- The tokens that are leased for `span` microseconds beside a charge that leaves `level`, while others are.
  function leasing.granted(charge, token, level, leased, span)
    local lease = charge.lease
    -- A product beyond 2^53 may be rounded, which makes no lease unsafe.
    local wanted = min(lease.tokens, floor(lease.demand * span / lease.span))
    local left = charge.burst * token - level
    return max(min(wanted, floor(left / token / 4), floor(charge.burst / 4) - leased), 0)
  end

  -- Decides a charge with a lease: the results of `decided`, and the details or nil. `is_same` says that the bucket was written
  -- under the numbers of the charge. `window_end` is nil if it has no windows.
  function leasing.decided(bucket, charge, token, level, is_same, position, window_end)
    local lease, capacity, held = charge.lease, charge.burst * token, bucket.holds and bucket.holds.held or 0
    if not is_same and charge.mode == 'refund' and charge.cost == 0 then
      -- What has changed since is not undone by a gateway with older rules.
      return UNCHANGED, level, 0, nil, nil
    end
    local found, leased, ending, has_ended =
      leasing.ended(bucket, charge, token, level, capacity, is_same, position and position.excess or 0)
    local outcome, after, retry, change =
      decided(charge, token, found, position, min(leased * token, capacity), held)
    if outcome == DENIED and has_ended then
      -- Then the lease does not end, either.
      outcome, after, retry = decided(charge, token, level, position, 0, held)
    end
    local details
    local spends = charge.mode == 'spend' or charge.mode == 'spend_only'
    if outcome == ALLOWED and spends and change and lease.tokens and held == 0 then
      local last = min(now + lease.span, window_end or EXACT - 1)
      local until_then = leased > 0 and ending or last
      local span = until_then - now
      local granted = span >= SHORTEST_LEASE and until_then <= last and leasing.granted(charge, token, after, leased, span) or 0
      if granted > 0 then
        change, leased, ending = after + granted * token, leased + granted, until_then
        details = { 'lease', granted, span, until_then }
      end
    end
    if has_ended and not change then
      change = found
    end
    bucket.lease_change = { leased, ending }
    return outcome, after, retry, change, details
  end

  -- Notes what is leased after a charge.
  function leasing.commit(bucket)
    local leased, ending = bucket.lease_change[1], bucket.lease_change[2]
    bucket.leased, bucket.lease_end = leased > 0 and leased or nil, ending
    bucket.keeps_leases = leased > 0 and bucket.keeps_leases
  end

  -- What is leased of a bucket with a constant drain, in levels by the numbers of a charge: all of it until the leases end; from
  -- then on it counts as used then.
  function leasing.held(bucket, charge)
    local levels = min(bucket.leased * charge.count, charge.burst * charge.count)
    local level = levels - charge.parameters * max(now - bucket.lease_end, 0)
    return level > 0 and level or 0
  end

  return leasing
end
