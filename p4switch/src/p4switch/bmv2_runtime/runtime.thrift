/* BMv2's run-time interface, for p4switch's server: names, field numbers and types are those that
   clients of behavioral-model 1.15 use. Enumerations are i32 on the wire, and here (records.py). */

struct BmMatchParamExact { 1: binary key }
struct BmMatchParamLPM { 1: binary key, 2: i32 prefix_length }
struct BmMatchParamTernary { 1: binary key, 2: binary mask }
struct BmMatchParamValid { 1: bool key }
struct BmMatchParamRange { 1: binary start, 2: binary end_ }
struct BmMatchParam {
  1: i32 type,
  2: optional BmMatchParamExact exact,
  3: optional BmMatchParamLPM lpm,
  4: optional BmMatchParamTernary ternary,
  5: optional BmMatchParamValid valid,
  6: optional BmMatchParamRange range
}
struct BmAddEntryOptions { 1: optional i32 priority }
struct BmCounterValue { 1: i64 bytes, 2: i64 packets }
struct BmMeterRateConfig { 1: double units_per_micros, 2: i32 burst_size }
struct DevMgrPortInfo { 1: i32 port_num, 2: string iface_name, 3: bool is_up, 4: map<string, string> extra }
struct BmCrc16Config {
  1: i16 polynomial, 2: i16 initial_remainder, 3: i16 final_xor_value,
  4: bool data_reflected, 5: bool remainder_reflected
}
struct BmCrc32Config {
  1: i32 polynomial, 2: i32 initial_remainder, 3: i32 final_xor_value,
  4: bool data_reflected, 5: bool remainder_reflected
}
struct BmActionEntry {
  1: i32 action_type,
  2: optional string action_name,
  3: optional list<binary> action_data,
  4: optional i32 mbr_handle,
  5: optional i32 grp_handle
}
struct BmMtEntryLife { 1: i32 timeout_ms, 2: i32 time_since_hit_ms }
struct BmMtEntry {
  1: list<BmMatchParam> match_key,
  2: BmAddEntryOptions options,
  3: i32 entry_handle,
  4: BmActionEntry action_entry,
  5: optional BmMtEntryLife life
}
struct BmMtActProfMember { 1: i32 mbr_handle, 2: string action_name, 3: list<binary> action_data }
struct BmMtActProfGroup { 1: i32 grp_handle, 2: list<i32> mbr_handles }
struct BmConfig {
  1: i64 device_id, 2: i32 thrift_port,
  3: optional string notifications_socket, 4: optional string elogger_socket,
  5: optional string debugger_socket
}
struct MirroringSessionConfig { 1: optional i32 port, 2: optional i32 mgid }

exception InvalidTableOperation { 1: i32 code }
exception InvalidCounterOperation { 1: i32 code }
exception InvalidMeterOperation { 1: i32 code }
exception InvalidRegisterOperation { 1: i32 code }
exception InvalidParseVSetOperation { 1: i32 code }
exception InvalidLearnOperation { 1: i32 code }
exception InvalidSwapOperation { 1: i32 code }
exception InvalidDevMgrOperation { 1: i32 code }
exception InvalidCrcOperation { 1: i32 code }
exception InvalidMcOperation { 1: i32 code }
exception InvalidMirroringOperation { 1: i32 code }

service Standard {
  i64 bm_mt_get_num_entries(1: i32 cxt_id, 2: string table_name) throws (1: InvalidTableOperation ouch),
  void bm_mt_clear_entries(1: i32 cxt_id, 2: string table_name, 3: bool reset_default_entry)
    throws (1: InvalidTableOperation ouch),
  i32 bm_mt_add_entry(1: i32 cxt_id, 2: string table_name, 3: list<BmMatchParam> match_key,
    4: string action_name, 5: list<binary> action_data, 6: BmAddEntryOptions options)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_set_default_action(1: i32 cxt_id, 2: string table_name, 3: string action_name,
    4: list<binary> action_data) throws (1: InvalidTableOperation ouch),
  void bm_mt_reset_default_entry(1: i32 cxt_id, 2: string table_name)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_delete_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_modify_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: string action_name, 5: list<binary> action_data) throws (1: InvalidTableOperation ouch),
  void bm_mt_set_entry_ttl(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle, 4: i32 timeout_ms)
    throws (1: InvalidTableOperation ouch),

  i32 bm_mt_act_prof_add_member(1: i32 cxt_id, 2: string act_prof_name, 3: string action_name,
    4: list<binary> action_data) throws (1: InvalidTableOperation ouch),
  void bm_mt_act_prof_delete_member(1: i32 cxt_id, 2: string act_prof_name, 3: i32 mbr_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_act_prof_modify_member(1: i32 cxt_id, 2: string act_prof_name, 3: i32 mbr_handle,
    4: string action_name, 5: list<binary> action_data) throws (1: InvalidTableOperation ouch),
  i32 bm_mt_act_prof_create_group(1: i32 cxt_id, 2: string act_prof_name)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_act_prof_delete_group(1: i32 cxt_id, 2: string act_prof_name, 3: i32 grp_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_act_prof_add_member_to_group(1: i32 cxt_id, 2: string act_prof_name, 3: i32 mbr_handle,
    4: i32 grp_handle) throws (1: InvalidTableOperation ouch),
  void bm_mt_act_prof_remove_member_from_group(1: i32 cxt_id, 2: string act_prof_name,
    3: i32 mbr_handle, 4: i32 grp_handle) throws (1: InvalidTableOperation ouch),
  list<BmMtActProfMember> bm_mt_act_prof_get_members(1: i32 cxt_id, 2: string act_prof_name)
    throws (1: InvalidTableOperation ouch),
  BmMtActProfMember bm_mt_act_prof_get_member(1: i32 cxt_id, 2: string act_prof_name, 3: i32 mbr_handle)
    throws (1: InvalidTableOperation ouch),
  list<BmMtActProfGroup> bm_mt_act_prof_get_groups(1: i32 cxt_id, 2: string act_prof_name)
    throws (1: InvalidTableOperation ouch),
  BmMtActProfGroup bm_mt_act_prof_get_group(1: i32 cxt_id, 2: string act_prof_name, 3: i32 grp_handle)
    throws (1: InvalidTableOperation ouch),

  i32 bm_mt_indirect_add_entry(1: i32 cxt_id, 2: string table_name, 3: list<BmMatchParam> match_key,
    4: i32 mbr_handle, 5: BmAddEntryOptions options) throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_modify_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: i32 mbr_handle) throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_delete_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_set_entry_ttl(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: i32 timeout_ms) throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_set_default_member(1: i32 cxt_id, 2: string table_name, 3: i32 mbr_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_reset_default_entry(1: i32 cxt_id, 2: string table_name)
    throws (1: InvalidTableOperation ouch),
  i32 bm_mt_indirect_ws_add_entry(1: i32 cxt_id, 2: string table_name,
    3: list<BmMatchParam> match_key, 4: i32 grp_handle, 5: BmAddEntryOptions options)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_ws_modify_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: i32 grp_handle) throws (1: InvalidTableOperation ouch),
  void bm_mt_indirect_ws_set_default_group(1: i32 cxt_id, 2: string table_name, 3: i32 grp_handle)
    throws (1: InvalidTableOperation ouch),

  BmCounterValue bm_mt_read_counter(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle)
    throws (1: InvalidTableOperation ouch),
  void bm_mt_reset_counters(1: i32 cxt_id, 2: string table_name) throws (1: InvalidTableOperation ouch),
  void bm_mt_write_counter(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: BmCounterValue value) throws (1: InvalidTableOperation ouch),
  void bm_mt_set_meter_rates(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle,
    4: list<BmMeterRateConfig> rates) throws (1: InvalidTableOperation ouch),
  list<BmMeterRateConfig> bm_mt_get_meter_rates(1: i32 cxt_id, 2: string table_name,
    3: i32 entry_handle) throws (1: InvalidTableOperation ouch),
  list<BmMtEntry> bm_mt_get_entries(1: i32 cxt_id, 2: string table_name)
    throws (1: InvalidTableOperation ouch),
  BmMtEntry bm_mt_get_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle)
    throws (1: InvalidTableOperation ouch),
  BmActionEntry bm_mt_get_default_entry(1: i32 cxt_id, 2: string table_name)
    throws (1: InvalidTableOperation ouch),
  BmMtEntry bm_mt_get_entry_from_key(1: i32 cxt_id, 2: string table_name,
    3: list<BmMatchParam> match_key, 4: BmAddEntryOptions options)
    throws (1: InvalidTableOperation ouch),

  BmCounterValue bm_counter_read(1: i32 cxt_id, 2: string counter_name, 3: i32 index)
    throws (1: InvalidCounterOperation ouch),
  void bm_counter_reset_all(1: i32 cxt_id, 2: string counter_name)
    throws (1: InvalidCounterOperation ouch),
  void bm_counter_write(1: i32 cxt_id, 2: string counter_name, 3: i32 index, 4: BmCounterValue value)
    throws (1: InvalidCounterOperation ouch),

  void bm_learning_ack(1: i32 cxt_id, 2: i32 list_id, 3: i64 buffer_id, 4: list<i32> sample_ids)
    throws (1: InvalidLearnOperation ouch),
  void bm_learning_ack_buffer(1: i32 cxt_id, 2: i32 list_id, 3: i64 buffer_id)
    throws (1: InvalidLearnOperation ouch),
  void bm_learning_set_timeout(1: i32 cxt_id, 2: i32 list_id, 3: i32 timeout_ms)
    throws (1: InvalidLearnOperation ouch),
  void bm_learning_set_buffer_size(1: i32 cxt_id, 2: i32 list_id, 3: i32 nb_samples)
    throws (1: InvalidLearnOperation ouch),

  void bm_load_new_config(1: string config_str) throws (1: InvalidSwapOperation ouch),
  void bm_swap_configs() throws (1: InvalidSwapOperation ouch),

  void bm_meter_array_set_rates(1: i32 cxt_id, 2: string meter_array_name,
    3: list<BmMeterRateConfig> rates) throws (1: InvalidMeterOperation ouch),
  void bm_meter_set_rates(1: i32 cxt_id, 2: string meter_array_name, 3: i32 index,
    4: list<BmMeterRateConfig> rates) throws (1: InvalidMeterOperation ouch),
  list<BmMeterRateConfig> bm_meter_get_rates(1: i32 cxt_id, 2: string meter_array_name, 3: i32 index)
    throws (1: InvalidMeterOperation ouch),

  i64 bm_register_read(1: i32 cxt_id, 2: string register_array_name, 3: i32 idx)
    throws (1: InvalidRegisterOperation ouch),
  list<i64> bm_register_read_all(1: i32 cxt_id, 2: string register_array_name)
    throws (1: InvalidRegisterOperation ouch),
  void bm_register_write(1: i32 cxt_id, 2: string register_array_name, 3: i32 index, 4: i64 value)
    throws (1: InvalidRegisterOperation ouch),
  void bm_register_write_range(1: i32 cxt_id, 2: string register_array_name, 3: i32 start_index,
    4: i32 end_index, 5: i64 value) throws (1: InvalidRegisterOperation ouch),
  void bm_register_reset(1: i32 cxt_id, 2: string register_array_name)
    throws (1: InvalidRegisterOperation ouch),

  void bm_parse_vset_add(1: i32 cxt_id, 2: string parse_vset_name, 3: binary value)
    throws (1: InvalidParseVSetOperation ouch),
  void bm_parse_vset_remove(1: i32 cxt_id, 2: string parse_vset_name, 3: binary value)
    throws (1: InvalidParseVSetOperation ouch),
  list<binary> bm_parse_vset_get(1: i32 cxt_id, 2: string parse_vset_name)
    throws (1: InvalidParseVSetOperation ouch),
  void bm_parse_vset_clear(1: i32 cxt_id, 2: string parse_vset_name)
    throws (1: InvalidParseVSetOperation ouch),

  void bm_dev_mgr_add_port(1: string iface_name, 2: i32 port_num, 3: string pcap_path)
    throws (1: InvalidDevMgrOperation ouch),
  void bm_dev_mgr_remove_port(1: i32 port_num) throws (1: InvalidDevMgrOperation ouch),
  list<DevMgrPortInfo> bm_dev_mgr_show_ports() throws (1: InvalidDevMgrOperation ouch),

  BmConfig bm_mgmt_get_info(),
  void bm_set_crc16_custom_parameters(1: i32 cxt_id, 2: string calc_name, 3: BmCrc16Config crc16_config)
    throws (1: InvalidCrcOperation ouch),
  void bm_set_crc32_custom_parameters(1: i32 cxt_id, 2: string calc_name, 3: BmCrc32Config crc32_config)
    throws (1: InvalidCrcOperation ouch),
  void bm_reset_state(),
  string bm_get_config(),
  binary bm_get_config_md5()
}

service SimplePre {
  i32 bm_mc_mgrp_create(1: i32 cxt_id, 2: i32 mgrp) throws (1: InvalidMcOperation ouch),
  void bm_mc_mgrp_destroy(1: i32 cxt_id, 2: i32 mgrp_handle) throws (1: InvalidMcOperation ouch),
  i32 bm_mc_node_create(1: i32 cxt_id, 2: i32 rid, 3: string port_map)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_associate(1: i32 cxt_id, 2: i32 mgrp_handle, 3: i32 l1_handle)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_dissociate(1: i32 cxt_id, 2: i32 mgrp_handle, 3: i32 l1_handle)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_destroy(1: i32 cxt_id, 2: i32 l1_handle) throws (1: InvalidMcOperation ouch),
  void bm_mc_node_update(1: i32 cxt_id, 2: i32 l1_handle, 3: string port_map)
    throws (1: InvalidMcOperation ouch),
  string bm_mc_get_entries(1: i32 cxt_id) throws (1: InvalidMcOperation ouch)
}

service SimplePreLAG {
  i32 bm_mc_mgrp_create(1: i32 cxt_id, 2: i32 mgrp) throws (1: InvalidMcOperation ouch),
  void bm_mc_mgrp_destroy(1: i32 cxt_id, 2: i32 mgrp_handle) throws (1: InvalidMcOperation ouch),
  i32 bm_mc_node_create(1: i32 cxt_id, 2: i32 rid, 3: string port_map, 4: string lag_map)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_associate(1: i32 cxt_id, 2: i32 mgrp_handle, 3: i32 l1_handle)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_dissociate(1: i32 cxt_id, 2: i32 mgrp_handle, 3: i32 l1_handle)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_node_destroy(1: i32 cxt_id, 2: i32 l1_handle) throws (1: InvalidMcOperation ouch),
  void bm_mc_node_update(1: i32 cxt_id, 2: i32 l1_handle, 3: string port_map, 4: string lag_map)
    throws (1: InvalidMcOperation ouch),
  void bm_mc_set_lag_membership(1: i32 cxt_id, 2: i16 lag_index, 3: string port_map)
    throws (1: InvalidMcOperation ouch),
  string bm_mc_get_entries(1: i32 cxt_id) throws (1: InvalidMcOperation ouch)
}

service SimpleSwitch {
  i32 mirroring_mapping_add(1: i32 mirror_id, 2: i32 egress_port),
  i32 mirroring_mapping_delete(1: i32 mirror_id),
  i32 mirroring_mapping_get_egress_port(1: i32 mirror_id),
  void mirroring_session_add(1: i32 mirror_id, 2: MirroringSessionConfig config)
    throws (1: InvalidMirroringOperation ouch),
  void mirroring_session_delete(1: i32 mirror_id) throws (1: InvalidMirroringOperation ouch),
  MirroringSessionConfig mirroring_session_get(1: i32 mirror_id)
    throws (1: InvalidMirroringOperation ouch),
  i32 set_egress_priority_queue_depth(1: i32 port_num, 2: i32 priority, 3: i32 depth_pkts),
  i32 set_egress_queue_depth(1: i32 port_num, 2: i32 depth_pkts),
  i32 set_all_egress_queue_depths(1: i32 depth_pkts),
  i32 set_egress_priority_queue_rate(1: i32 port_num, 2: i32 priority, 3: i64 rate_pps),
  i32 set_egress_queue_rate(1: i32 port_num, 2: i64 rate_pps),
  i32 set_all_egress_queue_rates(1: i64 rate_pps),
  i64 get_time_elapsed_us(),
  i64 get_time_since_epoch_us()
}
