-- The ids that are blocked, for all gateways: what is there to be read, and another block or the end of one.
--
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , read 0
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , block 10000 60000000 PerAddress:192.0.2.1 ''
--   redis-cli --eval lua/blocks.lua weir:{0}:!blocked weir:{0}:!blocked-notes , unblock PerAddress:192.0.2.1
--
-- KEYS[1] a sorted set: the beginnings of the keys of buckets, each with the microsecond of the server's clock at which
--         its block ends. The member `!version` has the time of the last change for its score; no bucket begins so.
-- KEYS[2] a hash: what is noted beside each of them, for people.
-- ARGV[1] what is wanted, and then what it takes:
--   read VERSION [FROM COUNT]   the version and, unless it is this one, how many members were looked at and for each block
--                               among them the member, the microseconds that are left of it, and its note. COUNT members
--                               from FROM on, or all: ten thousand at once would keep the server for 100 ms
--   block MOST SPAN MEMBER NOTE blocks it for SPAN microseconds from now, whatever was left before: 1, or 0 if MOST others
--                               are blocked
--   unblock MEMBER              1, or 0 if it was not blocked
--
-- What has ended is removed by the next who writes, and both keys expire with the last block. The version of nothing is 0.
-- SPAN and the time together must be below 2^53.

local format, max, tonumber = string.format, math.max, tonumber
local blocks, notes, wish = KEYS[1], KEYS[2], ARGV[1]
local VERSION, EVERYTHING = '!version', 1000000
local usage = 'ERR usage: KEY KEY , read VERSION | block MOST SPAN MEMBER NOTE | unblock MEMBER'
if #KEYS ~= 2 or not ARGV[2] or (wish == 'block' and not ARGV[5]) then
  return redis.error_reply(usage)
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local version = tonumber(redis.call('ZSCORE', blocks, VERSION) or 0)

if wish == 'read' then
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
elseif wish ~= 'block' and wish ~= 'unblock' then
  return redis.error_reply(usage)
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

if wish == 'unblock' then
  if remove(ARGV[2]) == 0 then
    return 0
  end
else
  local most, span, member = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
  local others = redis.call('ZCARD', blocks) - (version > 0 and 1 or 0)
  if others >= most and not redis.call('ZSCORE', blocks, member) then
    return 0
  end
  redis.call('ZADD', blocks, format('%.0f', now + span), member)
  redis.call('HSET', notes, member, ARGV[5])
end

-- A clock that stepped back must not give two contents one version.
redis.call('ZADD', blocks, format('%.0f', max(now, version + 1)), VERSION)
local last = 0
for _, member in ipairs(redis.call('ZRANGE', blocks, -2, -1)) do
  last = member == VERSION and last or max(last, tonumber(redis.call('ZSCORE', blocks, member)))
end
if last > now then
  local left = format('%.0f', math.ceil((last - now) / 1000))
  redis.call('PEXPIRE', blocks, left)
  redis.call('PEXPIRE', notes, left)
else
  redis.call('DEL', blocks, notes)
end
return 1
