-- A queue of work: at most CAPACITY entries wait, in a stream or a list, for workers that take and delete them.
--
--   redis-cli --eval <(lua/assemble queue.lua) KEY , NOW CAPACITY KIND MAX_AGE FIELDS COST MODE
--
-- Add an entry to a stream of at most 10, none older than a minute, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble queue.lua) weir:{0}:Jobs#queue , '' 10 stream 60000000 user=alice,path=/a%2Cb 1 spend
--
-- NOW, COST, MODE and the reply are those of decide.lua, where the words of a charge are
-- CAPACITY CAPACITY queue:KIND:MAX_AGE:FIELDS COST MODE.
--   KIND     stream or list
--   MAX_AGE  microseconds after which an entry is stale, 0 for never. An entry of exactly that age is stale.
--   FIELDS   the entry's name=value pairs, percent-encoded and separated by commas; for a refund the entry's id
-- COST is 1, one entry for each request, or 0, which only asks. A refund removes the entry if it is still there. A reset does
-- nothing: the entries are work, and only workers take them away. `retry` is -1, not known, unless the oldest entry goes stale;
-- `reset` is the time until the newest does. The details are { 'entry', ID }.
--
-- An entry of a stream has the fields, and an ID that begins with its time in milliseconds. An entry of a list is JSON,
-- {"id":"<microseconds>-<number>","fields":{...}}, and is added at the right end: workers take from the left. Stale entries go
-- when one is added. With a MAX_AGE the key expires with its newest entry, unless a stream has consumer groups, which would go
-- with it. A given NOW needs Redis 7, whose XADD completes an id.

--[[ include prelude.lua ]]
local algorithm = {}

-- Shared

-- The most stale entries that a decision counts beyond those that must go to admit one. With more than that, `remaining` is too
-- low until the next entry is added and they all go.
local MOST_COUNTED = 100
local stream, list = {}, {}

local function decoded(text)
  return (text:gsub('%%(%x%x)', function(code) return string.char(tonumber(code, 16)) end))
end

-- Names and values, in turn.
local function fields_of(text)
  local fields = {}
  for name, value in text:gmatch('([^=,]+)=([^,]*)') do
    fields[#fields + 1] = decoded(name)
    fields[#fields + 1] = decoded(value)
  end
  return fields
end

-- Each kind of queue has these functions:
--   length(key)        the number of entries, or an error
--   oldest(key, many)  when each of this number of oldest entries was added, in microseconds
--   newest(key)        when the newest was added
--   add(key, fields)   the id of a new entry, or an error
--   trim(key, until)   removes the entries that were added until then
--   has(key, id)       true if there is such an entry
--   remove(key, id)    removes it

function stream.length(key)
  return pcall('XLEN', key)
end

-- An entry of the future, from before the clock stepped back, counts as added now.
local function stream_instants(entries)
  for place, entry in ipairs(entries) do
    entries[place] = min(tonumber(match(entry[1], '^%d+')) * 1000, now)
  end
  return entries
end

function stream.oldest(key, many)
  return stream_instants(call('XRANGE', key, '-', '+', 'COUNT', many))
end

function stream.newest(key)
  return stream_instants(call('XREVRANGE', key, '+', '-', 'COUNT', 1))[1]
end

function stream.add(key, fields)
  return pcall('XADD', key, given and format(INTEGER .. '-*', floor(now / 1000)) or '*', unpack(fields))
end

function stream.trim(key, instant)
  call('XTRIM', key, 'MINID', format(INTEGER, floor(instant / 1000) + 1))
end

function stream.has(key, id)
  return #call('XRANGE', key, id, id) > 0
end

function stream.remove(key, id)
  call('XDEL', key, id)
end

function list.length(key)
  return pcall('LLEN', key)
end

-- An entry that others have put there never goes stale.
local function list_instants(entries)
  for place, entry in ipairs(entries) do
    entries[place] = min(tonumber(match(entry, '^{"id":"(%d+)%-')) or now, now)
  end
  return entries
end

function list.oldest(key, many)
  return list_instants(call('LRANGE', key, 0, many - 1))
end

function list.newest(key)
  return list_instants(call('LRANGE', key, -1, -1))[1]
end

function list.add(key, fields)
  local last, number = match(call('LINDEX', key, -1) or '', '^{"id":"(%d+)%-(%d+)"')
  local instant = max(now, tonumber(last) or 0)
  local id = format(INTEGER .. '-%d', instant, instant == tonumber(last) and number + 1 or 0)
  local members = {}
  for place = 1, #fields, 2 do
    members[#members + 1] = cjson.encode(fields[place]) .. ':' .. cjson.encode(fields[place + 1])
  end
  local added = pcall('RPUSH', key, format('{"id":"%s","fields":{%s}}', id, table.concat(members, ',')))
  return type(added) == 'table' and added or id
end

function list.trim(key, instant)
  local many, entries = 0, nil
  repeat
    entries = list_instants(call('LRANGE', key, many, many + MOST_COUNTED - 1))
    local before = many
    for _, at in ipairs(entries) do
      if at > instant then
        break
      end
      many = many + 1
    end
  until many - before < MOST_COUNTED
  if many > 0 then
    call('LTRIM', key, many, -1)
  end
end

-- The entry with this id, searched from the right: entries that are given back are mostly new.
local function entry_of(key, id)
  local start, last = '{"id":"' .. id .. '"', -1
  while true do
    local entries = call('LRANGE', key, last - MOST_COUNTED + 1, last)
    for _, entry in ipairs(entries) do
      if entry:sub(1, #start) == start then
        return entry
      end
    end
    if #entries < MOST_COUNTED then
      return nil
    end
    last = last - MOST_COUNTED
  end
end

function list.has(key, id)
  return entry_of(key, id) ~= nil
end

function list.remove(key, id)
  call('LREM', key, -1, entry_of(key, id))
end

-- KIND:MAX_AGE:FIELDS.
function algorithm.parse(text)
  local kind, max_age, rest = match(text, '^(%l+):(%d+):(.*)$')
  kind, max_age = ({ stream = stream, list = list })[kind], tonumber(max_age)
  return kind and max_age < EXACT and { kind = kind, max_age = max_age, rest = rest } or nil
end

-- The number of entries, how many of them are not stale, and how many must go before another fits. Or nil and an error.
local function looked(key, charge)
  local kind, max_age = charge.parameters.kind, charge.parameters.max_age
  local length = kind.length(key)
  if type(length) == 'table' then
    return nil, length
  end
  local over, stale = length - charge.burst + 1, 0
  if max_age > 0 and length > 0 and now - kind.oldest(key, 1)[1] >= max_age then
    for _, at in ipairs(kind.oldest(key, max(over, 0) + MOST_COUNTED)) do
      if now - at < max_age then
        break
      end
      stale = stale + 1
    end
  end
  return { length = length, waiting = length - stale, over = over }
end

-- Microseconds until this number of oldest entries is stale; -1 if that is not known, since workers may be faster.
local function until_stale(key, charge, many, length)
  local kind, max_age = charge.parameters.kind, charge.parameters.max_age
  if max_age == 0 or many > MOST_COUNTED then
    return -1
  end
  return many > length and max_age or max_age - (now - kind.oldest(key, many)[many])
end

local function reset(key, charge, length)
  local kind, max_age = charge.parameters.kind, charge.parameters.max_age
  if length == 0 then
    return 0
  end
  return max_age > 0 and max(max_age - (now - kind.newest(key)), 0) or -1
end

function algorithm.decide(key, charge)
  local found, failure = looked(key, charge)
  if not found then
    return nil, failure
  end
  local parameters, mode = charge.parameters, charge.mode
  local room, reset = max(charge.burst - found.waiting, 0), reset(key, charge, found.length)
  if mode == 'refund' then
    local id = match(parameters.rest, '^%d+%-%d+$')
    if not id or not parameters.kind.has(key, id) then
      return UNCHANGED, room, 0, reset
    end
    return ALLOWED, min(room + 1, charge.burst), 0, reset, { gone = id }
  elseif mode == 'reset' then
    return UNCHANGED, room, 0, reset
  elseif charge.cost == 0 then
    return ALLOWED, room, 0, reset
  elseif room == 0 then
    local wait = mode == 'spend_up_to' and 0 or until_stale(key, charge, found.over, found.length)
    return mode == 'spend_up_to' and UNCHANGED or charge.short, 0, wait, reset
  end
  local retry = room == 1 and mode ~= 'spend_up_to' and until_stale(key, charge, found.over + 1, found.length) or 0
  local after = parameters.max_age > 0 and parameters.max_age or -1
  if mode == 'check' then
    return ALLOWED, room - 1, retry, after
  end
  -- The id is known once the entry is there.
  local detail = { 'entry', '' }
  return ALLOWED, room - 1, retry, after, { detail = detail, stale = found.waiting < found.length }, detail
end

function algorithm.standing(key, charge)
  local found = looked(key, charge)
  return max(charge.burst - found.waiting, 0), reset(key, charge, found.length)
end

function algorithm.commit(key, charge, change)
  local kind, max_age = charge.parameters.kind, charge.parameters.max_age
  if change.gone then
    kind.remove(key, change.gone)
    return nil
  end
  local id = kind.add(key, fields_of(charge.parameters.rest))
  if type(id) == 'table' then
    return id
  end
  change.detail[2] = id
  if change.stale then
    kind.trim(key, now - max_age)
  end
  if not given and (max_age == 0 or kind == stream and #call('XINFO', 'GROUPS', key) > 0) then
    call('PERSIST', key)
  else
    call('PEXPIRE', key, kept_for(max_age, 0))
  end
end

-- Alone

local USAGE = 'KEY , NOW CAPACITY KIND MAX_AGE FIELDS COST MODE'
local arguments = {
  ARGV[1], '0', ARGV[2] or '', ARGV[2] or '', table.concat({ 'queue', ARGV[3] or '', ARGV[4] or '', ARGV[5] or '' }, ':'),
  ARGV[6], ARGV[7],
}
made.queue = algorithm
--[[ include requests.lua ]]
