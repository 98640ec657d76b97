-- The blocked ids, shared by all gateways: reads them, and blocks or unblocks one. Live overrides are kept in the same way, in the
-- keys `!overrides` and `!overrides-notes`: a member is an override's `Name:id`, and its end is that of the override. Resets of all
-- ids of a limit are in `!resets` and `!resets-notes`: a member is the limit's name in keys, and its end is far away.
--
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , read 0
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , block 10000 60000000 PerAddress:192.0.2.1 ''
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , unblock PerAddress:192.0.2.1
--
-- KEYS[1] a sorted set: the beginnings of bucket keys, each with the microsecond of the server's clock at which its block ends.
--         The score of the member `!version` is the time of the last change; no bucket begins so.
-- KEYS[2] a hash: a note for each of them.
-- ARGV[1] the operation, followed by its arguments:
--   read VERSION [FROM COUNT]   replies with the version and, unless it is this one, the number of members that were looked at
--                               and for each block among them the member, the microseconds left, and its note. COUNT members
--                               from FROM on, or all: ten thousand at once would take the server 100 ms
--   block MOST SPAN MEMBER NOTE [KNOWN]
--                               blocks it for SPAN microseconds from now, whatever was left before: 1, or 0 if MOST others
--                               are blocked. The new version is later than KNOWN
--   unblock MEMBER [KNOWN]      1, or 0 if it was not blocked
--   restore VERSION [SPAN MEMBER NOTE]...
--                               1 if these are now all blocks, under this version, or 0 if the server's own is not older
--
-- A write removes the blocks that have ended. The version outlives the last block: a gateway that still has one must learn that
-- it was ended. It is kept until no earlier block could still hold. A version of 0 means that nothing was blocked, or that the
-- server has lost it; a gateway that has blocks restores them.
-- SPAN and the time together must be below 2^53.

local format, max, tonumber = string.format, math.max, tonumber
local blocks, notes, operation = KEYS[1], KEYS[2], ARGV[1]
local VERSION, EVERYTHING = '!version', 1000000
-- Microseconds. A gateway's clock may be slower than the server's; and no block lasts longer than 366 days, though an override may.
local SLACK, LONGEST = 60000000, 366 * 86400000000
local usage = 'ERR usage: KEY KEY , read VERSION | block MOST SPAN MEMBER NOTE [KNOWN] | unblock MEMBER [KNOWN] '
  .. '| restore VERSION [SPAN MEMBER NOTE]...'
if #KEYS ~= 2 or not ARGV[2] or (operation == 'block' and not ARGV[5]) or (operation == 'restore' and #ARGV % 3 ~= 2) then
  return redis.error_reply(usage)
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local version = tonumber(redis.call('ZSCORE', blocks, VERSION) or 0)

if operation == 'read' then
  local reply = { version }
  if version == tonumber(ARGV[2]) then
    return reply
  end
  local from, count = tonumber(ARGV[3] or 0), tonumber(ARGV[4] or EVERYTHING)
  local held = redis.call('ZRANGE', blocks, from, from + count - 1, 'WITHSCORES')
  reply[2] = #held / 2
  for place = 1, #held, 2 do
    local member, left = held[place], tonumber(held[place + 1]) - now
    if left > 0 and member ~= VERSION then
      reply[#reply + 1] = member
      reply[#reply + 1] = left
      reply[#reply + 1] = redis.call('HGET', notes, member) or ''
    end
  end
  return reply
elseif operation ~= 'block' and operation ~= 'unblock' and operation ~= 'restore' then
  return redis.error_reply(usage)
end

-- Keeps both keys for at least `span` microseconds.
local function keep(span)
  if span / 1000 > redis.call('PTTL', blocks) then
    redis.call('PEXPIRE', blocks, format('%.0f', span / 1000))
  end
  redis.call('PEXPIRE', notes, redis.call('PTTL', blocks))
end

local function add(span, member, note)
  redis.call('ZADD', blocks, format('%.0f', now + span), member)
  redis.call('HSET', notes, member, note)
end

if operation == 'restore' then
  if version >= tonumber(ARGV[2]) then
    return 0
  end
  redis.call('DEL', blocks, notes)
  local longest = LONGEST
  for place = 3, #ARGV, 3 do
    local span = tonumber(ARGV[place])
    longest = max(longest, span + SLACK)
    add(span, ARGV[place + 1], ARGV[place + 2])
  end
  redis.call('ZADD', blocks, ARGV[2], VERSION)
  -- The length of blocks that other gateways may still have is not known.
  keep(longest)
  return 1
end

local function remove(member)
  redis.call('HDEL', notes, member)
  return redis.call('ZREM', blocks, member)
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', blocks, '-inf', format('%.0f', now))) do
  if member ~= VERSION then
    remove(member)
  end
end

local known
if operation == 'unblock' then
  if remove(ARGV[2]) == 0 then
    return 0
  end
  known = ARGV[3]
else
  local most, span, member = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
  local others = redis.call('ZCARD', blocks) - (version > 0 and 1 or 0)
  if others >= most and not redis.call('ZSCORE', blocks, member) then
    return 0
  end
  add(span, member, ARGV[5])
  keep(span + SLACK)
  known = ARGV[6]
end

-- A clock that stepped back must not give two states one version.
redis.call('ZADD', blocks, format('%.0f', max(now, version + 1, (tonumber(known) or 0) + 1)), VERSION)
return 1
