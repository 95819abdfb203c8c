-- Wireshark dissector of hopsum packets (docs/protocol.md).
--
-- Use: wireshark -X lua_script:hopsum.lua capture.pcap
--      tshark -X lua_script:hopsum.lua -r capture.pcap -Y 'hopsum.flags.stale'
--
-- Follow a fragment: hopsum.key == "JOB/TREE/FRAGMENT" (right click on "Key", Apply as Filter).
-- Expert information: _ws.expert, or hopsum.duplicate, hopsum.stale, hopsum.malformed, ...

local hopsum = Proto("hopsum", "hopsum: sums in the network")

local UDP_PORT = 0x4853
local VERSION = 4
local HEADER_BYTES = 20
local HOP_BYTES = 4
local LANE_BYTES = 4
local EXPONENT_BIAS = 127

local KINDS = {
    [1] = "contribution",
    [2] = "result",
    [3] = "replicated result",
    [4] = "inspect",
    [5] = "request",
}
local REDUCTIONS = {
    [0] = "sum",
    [1] = "and",
    [2] = "max",
    [3] = "xor",
    [4] = "none",
    [5] = "broadcast",
    [8] = "reduce sum",
    [9] = "reduce and",
    [10] = "reduce max",
    [11] = "reduce xor",
}
-- Bits of a value, and the reductions that have other widths than 32.
local WIDTHS = { [0] = 32, [1] = 16, [2] = 8 }
local OF_VALUES = { [0] = true, [2] = true, [8] = true, [10] = true }
-- Reductions whose packets have no lanes: contributions (and requests with a stack), and the others.
local BARE_UP = { [4] = true, [5] = true }
local BARE_DOWN = { [4] = true, [8] = true, [9] = true, [10] = true, [11] = true }

local WIDTH_NAMES = { [0] = "32 bits", [1] = "16 bits", [2] = "8 bits" }

local f = {
    version = ProtoField.uint8("hopsum.version", "Version", base.DEC, nil, 0xF0),
    kind = ProtoField.uint8("hopsum.kind", "Kind", base.DEC, KINDS, 0x0F),
    flags = ProtoField.uint8("hopsum.flags", "Flags", base.HEX),
    overflow = ProtoField.bool("hopsum.flags.overflow", "Overflow", 8, nil, 0x01),
    stale = ProtoField.bool("hopsum.flags.stale", "Stale", 8, nil, 0x02),
    bypass = ProtoField.bool("hopsum.flags.bypass", "Bypass", 8, nil, 0x04),
    ecn = ProtoField.bool("hopsum.flags.ecn", "Congestion", 8, nil, 0x08),
    sequenced = ProtoField.bool("hopsum.flags.sequenced", "Sequenced", 8, nil, 0x10),
    repair = ProtoField.bool("hopsum.flags.repair", "Repair", 8, nil, 0x20),
    reduction = ProtoField.uint8("hopsum.reduction", "Reduction", base.DEC, REDUCTIONS, 0xF0),
    hops = ProtoField.uint8("hopsum.hops", "Stack entries", base.DEC),
    exponent = ProtoField.uint8("hopsum.exponent", "Exponent byte", base.DEC),
    job = ProtoField.uint16("hopsum.job", "Job", base.DEC),
    tree = ProtoField.uint8("hopsum.tree", "Tree", base.DEC),
    width = ProtoField.uint8("hopsum.width", "Width", base.DEC, WIDTH_NAMES, 0x0F),
    epoch = ProtoField.uint16("hopsum.epoch", "Epoch", base.DEC),
    worker = ProtoField.uint16("hopsum.worker", "Worker", base.DEC),
    weight = ProtoField.uint16("hopsum.weight", "Weight", base.DEC),
    sequence = ProtoField.uint16("hopsum.sequence", "Sequence", base.DEC),
    fragment = ProtoField.uint32("hopsum.fragment", "Fragment", base.DEC),
    hop = ProtoField.none("hopsum.hop", "Stack entry"),
    aggregate = ProtoField.bool("hopsum.hop.aggregate", "Aggregate", 8, nil, 0x80),
    clear = ProtoField.bool("hopsum.hop.clear", "Clear", 8, nil, 0x40),
    child = ProtoField.uint32("hopsum.hop.child", "Child", base.DEC, nil, 0x3FE00000),
    fan_in = ProtoField.uint32("hopsum.hop.fan_in", "Fan-in", base.DEC, nil, 0x001FF800),
    port = ProtoField.uint32("hopsum.hop.port", "Port", base.DEC, nil, 0x000007FF),
    lanes = ProtoField.none("hopsum.lanes", "Lanes"),
    key = ProtoField.string("hopsum.key", "Key", base.ASCII, "Job, tree and fragment"),
    first_copy = ProtoField.framenum(
        "hopsum.first_copy", "First copy in", base.NONE, frametype.DUP_ACK),
    value = ProtoField.int32("hopsum.lane", "Value", base.DEC),
}
local all_fields = {}
for _, field in pairs(f) do
    all_fields[#all_fields + 1] = field
end
hopsum.fields = all_fields

local overflowed = ProtoExpert.new(
    "hopsum.overflowed", "A value of the sum wrapped around", expert.group.SEQUENCE, expert.severity.WARN)
local truncated = ProtoExpert.new(
    "hopsum.truncated", "Not a whole number of lanes", expert.group.MALFORMED, expert.severity.ERROR)
local stale = ProtoExpert.new(
    "hopsum.stale", "Older than the slot of a switch: not added, only forwarded",
    expert.group.SEQUENCE, expert.severity.NOTE)
local bypass = ProtoExpert.new(
    "hopsum.bypass", "Bypasses the switches: its sum did not arrive in time",
    expert.group.SEQUENCE, expert.severity.NOTE)
local repair = ProtoExpert.new(
    "hopsum.repair", "Retransmitted on this link at the neighbour's request",
    expert.group.SEQUENCE, expert.severity.NOTE)
local duplicate = ProtoExpert.new(
    "hopsum.duplicate", "Duplicate of an earlier packet in this capture: retransmitted, or sent again by a switch",
    expert.group.SEQUENCE, expert.severity.NOTE)
local malformed = ProtoExpert.new(
    "hopsum.malformed", "A switch drops it: a field has an invalid value",
    expert.group.MALFORMED, expert.severity.ERROR)
hopsum.experts = { overflowed, truncated, stale, bypass, repair, duplicate, malformed }

hopsum.prefs.lanes = Pref.bool("Show lanes", true, "List the values of every packet")

local first_copies = {} -- by identity, the number of the packet that had it first
local copies = {} -- by the number of a packet, that of its first copy

function hopsum.init()
    first_copies = {}
    copies = {}
end

-- Link a duplicate to its first copy in the capture: the same contribution, sum or result between the
-- same hosts, with the same number of stack entries.
local function add_copy(tree, packet, identity)
    if not packet.visited then
        local first = first_copies[identity]
        if first == nil then
            first_copies[identity] = packet.number
        else
            copies[packet.number] = first
        end
    end
    local first = copies[packet.number]
    if first ~= nil then
        tree:add(f.first_copy, first):set_generated()
        tree:add_proto_expert_info(duplicate, string.format("Duplicate of packet %d", first))
    end
end

local function has(flags, bit)
    return math.floor(flags / bit) % 2 == 1
end

local function flag_names(flags)
    local names = {}
    for _, pair in ipairs({ { 1, "overflow" }, { 2, "stale" }, { 4, "bypass" }, { 8, "ecn" },
            { 16, "sequenced" }, { 32, "repair" } }) do
        if math.floor(flags / pair[1]) % 2 == 1 then
            names[#names + 1] = pair[2]
        end
    end
    return table.concat(names, "+")
end

local function add_stack(tree, buffer, hops)
    for i = 0, hops - 1 do
        local entry = buffer(HEADER_BYTES + i * HOP_BYTES, HOP_BYTES)
        local what = "forward"
        if entry(0, 1):bitfield(0, 1) == 1 then
            what = "aggregate"
        elseif entry(0, 1):bitfield(1, 1) == 1 then
            what = "clear"
        end
        local item = tree:add(f.hop, entry)
        item:set_text(string.format("Stack entry %d: %s, child %d of %d, port %d", i, what,
            entry:bitfield(2, 9), entry:bitfield(11, 10), entry:bitfield(21, 11)))
        item:add(f.aggregate, entry(0, 1))
        item:add(f.clear, entry(0, 1))
        item:add(f.child, entry)
        item:add(f.fan_in, entry)
        item:add(f.port, entry)
    end
end

local function is_bare(kind, hops, reduction)
    local up = KINDS[kind] == "contribution" or (KINDS[kind] == "request" and hops > 0)
    return (up and BARE_UP or BARE_DOWN)[reduction] == true
end

-- Add what switches of any number of lanes and entries drop, as p4src/include/parser.p4 does.
local function add_malformed(tree, packet, kind, reduction, width, hops, owner)
    local name = KINDS[kind]
    local wrong = {}
    if packet.src_port ~= UDP_PORT then
        wrong[#wrong + 1] = string.format("UDP source port %d", packet.src_port)
    end
    if name == nil then
        wrong[#wrong + 1] = string.format("Kind %d: unknown kind", kind)
    end
    if REDUCTIONS[reduction] == nil then
        wrong[#wrong + 1] = string.format("Reduction %d: unknown reduction", reduction)
    end
    if WIDTHS[width] == nil then
        wrong[#wrong + 1] = string.format("Width %d: unknown width", width)
    elseif width > 0 and REDUCTIONS[reduction] ~= nil and not OF_VALUES[reduction] then
        wrong[#wrong + 1] = string.format("Reduction %s with values of %d bits", REDUCTIONS[reduction], WIDTHS[width])
    end
    if name == "contribution" and hops == 0 then
        wrong[#wrong + 1] = "Contribution without stack entries"
    elseif (name == "replicated result" or name == "inspect") and hops > 0 then
        wrong[#wrong + 1] = name:gsub("^%l", string.upper) .. " with stack entries"
    elseif name == "request" and REDUCTIONS[reduction] == "none" then
        wrong[#wrong + 1] = "Request of a reduction without lanes"
    end
    for _, field in ipairs({ "Job", "Epoch", "Weight" }) do
        if owner[field] == 0 and name ~= "inspect" then
            wrong[#wrong + 1] = field .. " 0"
        end
    end
    for _, what in ipairs(wrong) do
        tree:add_proto_expert_info(malformed, what)
    end
end

local function add_lanes(tree, buffer, start, lanes, bits)
    local block = buffer(start, lanes * LANE_BYTES)
    local bytes = bits / 8
    local count = block:len() / bytes
    local item = tree:add(f.lanes, block)
    item:set_text(string.format("Lanes: %d values of %d bits", count, bits))
    if hopsum.prefs.lanes then
        for i = 0, count - 1 do
            local value = block(i * bytes, bytes)
            item:add(f.value, value, value:int()):prepend_text(string.format("[%d] ", i))
        end
    end
end

function hopsum.dissector(buffer, packet, root)
    local version = buffer:len() > 0 and buffer(0, 1):bitfield(0, 4) or VERSION
    if buffer:len() < HEADER_BYTES or version ~= VERSION then
        packet.cols.protocol = "hopsum"
        root:add(hopsum, buffer()):add_proto_expert_info(malformed,
            version ~= VERSION and string.format("Version %d: unknown version", version) or "Shorter than a header")
        return buffer:len()
    end
    local kind = buffer(0, 1):bitfield(4, 4)
    local flags = buffer(1, 1):uint()
    local hops = buffer(7, 1):uint()
    local exponent = buffer(3, 1):uint()

    local tree = root:add(hopsum, buffer())
    tree:add(f.version, buffer(0, 1))
    tree:add(f.kind, buffer(0, 1))
    local flag_item = tree:add(f.flags, buffer(1, 1))
    flag_item:add(f.overflow, buffer(1, 1))
    flag_item:add(f.stale, buffer(1, 1))
    flag_item:add(f.bypass, buffer(1, 1))
    flag_item:add(f.ecn, buffer(1, 1))
    flag_item:add(f.sequenced, buffer(1, 1))
    flag_item:add(f.repair, buffer(1, 1))
    for bit, info in pairs({ [0x01] = overflowed, [0x02] = stale, [0x04] = bypass, [0x20] = repair }) do
        if has(flags, bit) then
            flag_item:add_proto_expert_info(info)
        end
    end
    local reduction = buffer(2, 1):bitfield(0, 4)
    local width = buffer(2, 1):bitfield(4, 4)
    add_malformed(tree, packet, kind, reduction, width, hops,
        { Job = buffer(4, 2):uint(), Epoch = buffer(8, 2):uint(), Weight = buffer(12, 2):uint() })
    tree:add(f.reduction, buffer(2, 1))
    tree:add(f.width, buffer(2, 1))
    local exponent_item = tree:add(f.exponent, buffer(3, 1))
    if exponent > 0 then
        exponent_item:append_text(string.format(" (below 2^%d)", exponent - EXPONENT_BIAS))
    end
    tree:add(f.job, buffer(4, 2))
    tree:add(f.tree, buffer(6, 1))
    tree:add(f.hops, buffer(7, 1))
    tree:add(f.epoch, buffer(8, 2))
    tree:add(f.worker, buffer(10, 2))
    tree:add(f.weight, buffer(12, 2))
    tree:add(f.sequence, buffer(14, 2))
    tree:add(f.fragment, buffer(16, 4))

    local summary = string.format("%s job %d tree %d epoch %d fragment %d worker %d weight %d",
        KINDS[kind] or "unknown kind", buffer(4, 2):uint(), buffer(6, 1):uint(),
        buffer(8, 2):uint(), buffer(16, 4):uint(), buffer(10, 2):uint(), buffer(12, 2):uint())
    if flags > 0 then
        summary = summary .. " [" .. flag_names(flags) .. "]"
    end
    local key = string.format(
        "%d/%d/%d", buffer(4, 2):uint(), buffer(6, 1):uint(), buffer(16, 4):uint())
    tree:add(f.key, key):set_generated()
    add_copy(tree, packet, table.concat({ kind, key, buffer(8, 2):uint(), buffer(10, 2):uint(),
        buffer(12, 2):uint(), hops, flags, tostring(packet.src), tostring(packet.dst) }, " "))
    packet.cols.protocol = "hopsum"
    packet.cols.info = summary
    tree:append_text(", " .. summary)

    local start = HEADER_BYTES + hops * HOP_BYTES
    local lanes = math.floor((buffer:len() - start) / LANE_BYTES)
    local bare = is_bare(kind, hops, reduction)
    if bare and buffer:len() == start then
        add_stack(tree, buffer, hops)
        return start
    end
    if bare or lanes < 1 or buffer:len() ~= start + lanes * LANE_BYTES then
        tree:add_proto_expert_info(truncated)
        return buffer:len()
    end
    add_stack(tree, buffer, hops)
    add_lanes(tree, buffer, start, lanes, WIDTHS[width] or 32)
    return start + lanes * LANE_BYTES
end

DissectorTable.get("udp.port"):add(UDP_PORT, hopsum)
