-- User scripts. The table `scripts` of the call has them by name, each a function of KEYS and ARGV. It is empty in calls that
-- charge none of them.
--
-- The words of a charge are BURST COUNT script:NAME:ARGS COST MODE; ARGS is one `=value` for each argument, percent-encoded.
-- BURST, COUNT and COST mean nothing to a script. It runs last, and only if no other charge of the request denies. If a second
-- script denies, it cannot undo what the first has counted.
--
-- KEYS is the bucket's key, ARGV the arguments. A script returns { VERDICT, VALUES, ... }:
--   VERDICT  'allow', 'deny' or, an older word for it, 'block'
--   VALUES   a list of header values: a text, which is the value of the header at its place, or a pair { NAME, TEXT }
--   ...      anything else for the logs
-- The details are { 'script', VALUES, EXTRAS }, all texts. Anything else that a script returns, and an error in it, is the error
-- of its request.
--
-- This file does not run alone, but each script does: redis-cli --eval my.lua KEY , ARG ...

-- Shared

local VERDICTS = { allow = ALLOWED, deny = DENIED, block = DENIED }
-- The bounds of a reply: values, extras, and the bytes of each.
local MOST_VALUES, MOST_EXTRAS, LONGEST_VALUE, LONGEST_EXTRA = 32, 16, 1024, 256

-- NAME:ARGS.
function algorithm.parse(text)
  local name, rest = match(text, '^(%x+):(.*)$')
  local run = scripts[name or '']
  if not run then
    return nil
  end
  local arguments = {}
  for argument in rest:gmatch('=([^=]*)') do
    arguments[#arguments + 1] = argument:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end)
  end
  return { run = run, arguments = arguments }
end

-- A text or a number as text; a number as Redis would return it, without its fraction.
local function text_of(value)
  if type(value) == 'number' and value - value == 0 then
    return format('%.0f', value < 0 and ceil(value) or floor(value))
  end
  return type(value) == 'string' and value or nil
end

-- A value of the reply; nil if it is invalid.
local function header_of(value)
  if type(value) == 'table' then
    local name, text = text_of(value[1]), text_of(value[2])
    return name and text and #value == 2 and #name + #text <= LONGEST_VALUE and { name, text } or nil
  end
  local text = text_of(value)
  return text and #text <= LONGEST_VALUE and text or nil
end

local function extra_of(value)
  if type(value) == 'table' then
    local done, text = protected(cjson.encode, value)
    value = done and text or 'a table'
  end
  return (text_of(value) or tostring(value)):sub(1, LONGEST_EXTRA)
end

-- An error of the server keeps its code after a hyphen, from which gateways recognize a replica or a server that is loading.
local function failed(reason)
  return nil, redis.error_reply('ERR user script: ' .. (match(reason, '^%u+ ') and '-' or '') .. reason)
end

function algorithm.decide(key, charge)
  if charge.mode ~= 'spend' and charge.mode ~= 'spend_only' then
    return failed('a script supports spend and spend_only, not ' .. charge.mode)
  end
  local arguments = { unpack(charge.parameters.arguments) }
  local done, reply = protected(charge.parameters.run, { key }, arguments)
  if not done or type(reply) == 'table' and reply.err then
    return failed(tostring(type(reply) == 'table' and reply.err or reply))
  elseif type(reply) ~= 'table' then
    return failed('the reply is no list but ' .. type(reply))
  end
  local outcome, values, extras = VERDICTS[reply[1]], {}, {}
  if not outcome then
    return failed('the verdict is neither allow, deny nor block, but ' .. extra_of(reply[1]))
  elseif type(reply[2]) ~= 'table' or #reply[2] > MOST_VALUES then
    return failed(format('after the verdict comes a list of at most %d values', MOST_VALUES))
  end
  for place, value in ipairs(reply[2]) do
    values[place] = header_of(value)
    if not values[place] then
      return failed(format('value %d is neither a text nor a pair of texts of at most %d bytes', place, LONGEST_VALUE))
    end
  end
  for place = 3, min(#reply, 2 + MOST_EXTRAS) do
    extras[place - 2] = extra_of(reply[place])
  end
  local detail = { 'script', values, extras }
  if outcome == DENIED then
    return charge.short, 0, -1, -1, nil, detail
  end
  return ALLOWED, charge.burst, 0, -1, nil, detail
end

-- Only the script knows the state of its bucket.
function algorithm.standing(_, charge)
  return charge.burst, -1
end

-- A script counts as it decides.
algorithm.late = true

-- Alone

return redis.error_reply('ERR run the script itself: redis-cli --eval my.lua KEY , ARG ...')
