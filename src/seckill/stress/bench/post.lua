-- wrk: every request is a purchase of a user of its own. Argument: a prefix for the user ids.
local prefix, number = "u", 0
function init(arguments) prefix = arguments[1] or prefix end
function request()
  number = number + 1
  return wrk.format("POST", "/seckill/bench?userId=" .. prefix .. number)
end
