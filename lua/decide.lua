-- The script that a gateway calls. It decides the charges of one request, all or nothing, or of many requests, one after the
-- other. Each algorithm is a file beside this one, which documents its words and runs alone as well.
--
--   redis-cli --eval <(lua/assemble decide.lua) KEY [KEY ...] , NOW EFFECTIVE_FROM REQUEST [REQUEST ...] [#ECHO]
--
-- KEYS: the buckets, no two alike in one request; then the quotas of elevated.lua, in any order. In a cluster all are in one slot.
-- ARGV[1] NOW: microseconds since the Unix epoch, or empty for the server's own clock.
-- ARGV[2] EFFECTIVE_FROM: when these numbers took effect, in the same unit; read if a bucket was written under others.
-- Then one argument for each request: five words for each of its buckets, in the order of KEYS, separated by blanks. The same
-- text again costs next to nothing, and most requests of a gateway have the same.
--   BURST        the capacity, in tokens
--   TOKEN DRAIN  for gcra.lua, or
--   COUNT WORD   for another algorithm, which WORD names
--   COST         tokens; 0 asks without taking
--   MODE         spend        takes the cost if it is there, and otherwise denies the whole request
--                check        answers as spend would, and takes nothing
--                look         denies as check does; if the cost fits, it reports the bucket as it is
--                spend_only   takes the cost if it is there, and never denies
--                spend_up_to  takes the cost, or all that is left if that is less, and never denies
--                refund       gives the cost back, up to a full bucket
--                reset        makes the bucket full
--              The first four may end in a role and the number of a group, the same for all charges of a limit: `/N` is an
--              enforced limit, `/sN` a limit in shadow and `/cN`, `/dN`, `/eN` and `/fN` its candidates, other numbers of the
--              limit, and `/bN` counts that it does not fit. All but the first never deny. See the rule of taking below.
--              spend and spend_only may then end in `~`: sliding_log, sliding_window and fixed_window then tell when the
--              tokens were taken, in the details { 'taken', INSTANT }. A refund may end in `~INSTANT`: sliding_log gives back
--              only what was taken at that instant, sliding_window only of its window, and fixed_window nothing if another
--              window has begun since. Any mode may then end in `@INSTANT`: when the numbers took effect, if that was after
--              EFFECTIVE_FROM.
--              A spend or a refund of gcra or fixed_window may then end in what leases.lua describes, a spend or a spend_up_to
--              of these in what holds.lua describes, and any mode of
--              these in `=PATIENCE:DELAY`: a cost that fits within PATIENCE microseconds is taken now, and DELAY, at least
--              as long, is the longest PATIENCE of charges of the bucket.
-- The words of one request may also be separate arguments.
-- A last argument that begins with # is repeated in the reply, so that a caller can tell that it answers this call.
--
-- Reply: integers. First the number of keys that held text which is not a bucket; they count as full and are overwritten.
-- Then four for each key:
--   outcome    0 allowed, 1 denied, 2 nothing happened, 3 the cost is not there and the charge denies nothing;
--              -N allowed after N microseconds
--   remaining  whole tokens left
--   retry      microseconds until the same charge would fit, -1 for never
--   reset      microseconds until the bucket is full, or its window ends; -1 for never
-- The rule of taking: a group fits if the cost of each of its charges is there; without a number a charge is a group of its own, and so
-- is each candidate. The request is denied if an enforced group does not fit. A charge takes its cost if its group fits and no
-- enforced one fails to; for a candidate, none but that of its number. What counts that a limit does not fit takes its cost only
-- then, and says nothing about the limit. Buckets that count what is denied count it in any case. What
-- fits and takes nothing reports the state of its bucket without the charge, or with it where it counts.
-- Each request finds the buckets as those before it have left them. Two things are written in any case: a bucket that is dated
-- ahead of the clock is dated now, and a key that was written under other numbers is kept for as long as these need.
-- Then the argument that begins with #, if there is one.
-- Last, if an algorithm has details of a charge, a list: the number of the charge in the call, counted from 0, and a list of
-- its details, and so on.
--
-- A request with a malformed charge, or with a bucket that cannot be read or written (NOPERM, OOM, ...), has that error in
-- place of its integers, and the others have their answers. It changes nothing if a bucket cannot be read. A server that rejects
-- a write rejects every write of the call. A request that does not consist of five words for each charge fails the call.
--
-- Numbers are doubles. BURST * TOKEN, TOKEN, DRAIN and all times must be below 2^53, below which doubles hold every integer.
-- Where an intermediate result can be larger, a comment says why that does no harm.
--
-- The contract of algorithms. An algorithm is a table with these functions; `load` below has a line for each. A charge has the
-- fields `burst`, `count` (TOKEN or COUNT), `numbers` (both words as text), `algorithm`, `parameters`, `cost`, `mode`, `from`
-- (when its numbers took effect), `short` (the outcome if it does not fit) and, if given, `look` (its mode is `check`), `group`,
-- `candidate`, `taken` (the instant of a refund), `told` (with `~`), `lease`, `hold`, `patience` and `delay`.
--   parse(text)                  returns the `parameters` of a charge, from what follows the name in WORD; nil if invalid.
--   decide(key, charge)          returns outcome, remaining, retry, reset; then the change to commit, or nil; the details, or
--                                nil; and true if the change is committed even if the request is denied. Or returns nil and an
--                                error. It changes nothing that a caller could see.
--   standing(key, charge)        follows a decide that allowed, if another charge prevents this one: returns remaining and reset
--                                without the charge, and the details, or nil.
--   commit(key, charge, change)  makes the change, so that later requests of the call find it. Returns nil or an error.
-- and, if they are of use to it:
--   finish(errors)               is called once, at the end of the call: writes what commits have noted, to write each key
--                                once. Adds errors to the table `errors` by key, creating it if it is nil, and returns it. The
--                                commits of such an algorithm cannot fail, and follow all others of a request.
--   late = true                  for one that cannot decide without a change: `decide` makes the change. It is called after all
--                                others of the request, and only if none of them denies.
-- Every key of something that is not a bucket adds one to `corrupt`; one of another type is deleted, unless it is a queue's or a script's.

-- The user scripts that this call charges, by name; a gateway writes them in here (see script.lua). They come first, so that
-- they see no name of this file.
local scripts = {}

--[[ include prelude.lua ]]
--[[ include levels.lua ]]

-- Makes the algorithm of this name for the call, or returns nil if the name is unknown. Only the functions of algorithms that a call
-- charges are created: a tenth of a microsecond for each of dozens is much beside the fifteen of a call.
function load(name)
  local algorithm = {}
  if name == 'gcra' then --[[ include gcra.lua ]]
  elseif name == 'fixed_window' then --[[ include fixed_window.lua ]]
  elseif name == 'sliding_log' then --[[ include sliding_log.lua ]]
  elseif name == 'sliding_window' then --[[ include sliding_window.lua ]]
  elseif name == 'concurrency' then --[[ include concurrency.lua ]]
  elseif name == 'queue' then --[[ include queue.lua ]]
  elseif name == 'script' then --[[ include script.lua ]]
  elseif name == 'elevated' then --[[ include elevated.lua ]]
  else
    return nil
  end
  made[name] = algorithm
  return algorithm
end

local USAGE = 'KEY [KEY ...] , NOW EFFECTIVE_FROM, and BURST TOKEN DRAIN COST MODE for each KEY'
local arguments = ARGV
--[[ include requests.lua ]]
